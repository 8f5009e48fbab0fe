"use strict";
// The study's model in the page: what a configuration takes, with its interval. A configuration is a place among the
// levels for every factor.
function predictor(model) {
  const floats = (text) => new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const size = model.coefficients.length, upper = floats(model.covariance);
  const blocks = model.blocks && { ...model.blocks, sums: floats(model.blocks.sums), noise: floats(model.blocks.noise) };
  const missed = model.missed && { ...model.missed, share: floats(model.missed.share) };
  const names = model.factors.map((f) => f.name);
  // What Python knows and the page does not (arithmetic) is not checked here.
  const test = (text) => { try { return condition(text, names); } catch { return () => true; } };
  const tests = model.rules.map((rule) => [rule.name, test(rule.text)]);
  const exist = model.factors.map((f) => (f.when ? test(f.when) : null));

  const values = (places) => Object.fromEntries(model.factors.map((f, i) => [f.name, f.values[places[i]]]));

  function codesOf(places) {
    const config = values(places);
    return model.factors.map((f, i) => (exist[i] && !exist[i](config) ? f.codes[places[i]].map(() => 0) : f.codes[places[i]]));
  }
  const products = (terms, codes) => terms.flatMap((term) =>
    term.reduce((product, i) => product.flatMap((left) => codes[i].map((right) => left * right)), [1]));

  function quadratic(x, triangle) {
    let found = 0, k = 0;
    for (let i = 0; i < size; i++) for (let j = i; j < size; j++) found += (i === j ? 1 : 2) * x[i] * x[j] * triangle[k++];
    return found;
  }

  // By how much the squared error grows where the runs of a block err together; null where they do not.
  function byBlocks(x) {
    const sums = [];
    for (let start = 0; start < blocks.sums.length; start += size) {
      let sum = 0;
      for (let i = 0; i < size; i++) sum += x[i] * blocks.sums[start + i];
      sums.push(sum);
    }
    const at = (lag) => sums.reduce((total, sum, i) => total + (i >= lag ? sum * sums[i - lag] : 0), 0);
    const own = quadratic(x, blocks.noise), together = at(0);
    if (together <= own * blocks.beyond_chance) return null;
    return blocks.lags.reduce((total, [lag, weight]) => total + 2 * weight * Math.max(at(lag), 0), together - own);
  }

  // What three factors together may do, which the model has no coefficients for.
  function missedVariance(x, codes) {
    const columns = products(missed.terms, codes);
    let found = 0;
    for (let k = 0; k < columns.length; k++) {
      let left = -missed.spreads[k] * columns[k];
      for (let i = 0; i < size; i++) left += x[i] * missed.share[i * columns.length + k];
      found += left * left;
    }
    return found;
  }

  function predict(places) {
    const codes = codesOf(places), row = [1, ...products(model.terms, codes)];
    const x = model.kept.map((column) => row[column]);
    let mean = 0, variance = quadratic(x, upper), quantile = model.quantile;
    for (let i = 0; i < size; i++) mean += x[i] * model.coefficients[i];
    if (missed) variance += missedVariance(x, codes);
    const more = blocks ? byBlocks(x) : null;
    if (more !== null) { variance += more; quantile = blocks.quantile; }
    const half = quantile * Math.sqrt(Math.max(variance, 0));
    return { us: Math.exp(mean), low_us: Math.exp(mean - half), high_us: Math.exp(mean + half) };
  }

  // The names of the constraints that forbid a configuration.
  const forbidden = (places) => tests.filter(([, allows]) => !allows(values(places))).map(([name]) => name);
  const baseline = model.factors.map((f) => f.base);
  return { predict, forbidden, baseline };
}

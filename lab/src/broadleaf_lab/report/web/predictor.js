"use strict";
// The study's model in the page: what a configuration takes, with its interval. A configuration is a place among the
// levels for every factor.
function predictor(model) {
  const unpacked = (packed) => ({ ...packed, values: new Int16Array(Uint8Array.from(atob(packed.values), (c) => c.charCodeAt(0)).buffer) });
  const size = model.coefficients.length, covariance = unpacked(model.covariance);
  const blocks = model.blocks && { ...model.blocks, together: unpacked(model.blocks.together),
    later: model.blocks.later.map(unpacked), noise: model.blocks.noise ? unpacked(model.blocks.noise) : covariance };
  const missed = model.missed && { ...model.missed, share: unpacked(model.missed.share) };
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

  // x times a symmetric matrix times x; of the matrix, each row and column is divided by its spread.
  function quadratic(x, half) {
    const wide = x.map((value, i) => value * model.spreads[i]);
    let found = 0, k = 0;
    for (let i = 0; i < size; i++) for (let j = i; j < size; j++) found += (i === j ? 1 : 2) * wide[i] * wide[j] * half.values[k++];
    return found * half.unit;
  }

  // By how much the squared error grows where the runs of a block err together; null where they do not.
  function byBlocks(x) {
    const own = quadratic(x, blocks.noise), together = quadratic(x, blocks.together);
    if (together <= own * blocks.beyond_chance) return null;
    return blocks.later.reduce((total, half) => total + 2 * half.weight * Math.max(quadratic(x, half), 0), together - own);
  }

  // What three factors together may do, which the model has no coefficients for.
  function missedVariance(x, codes) {
    const columns = products(missed.terms, codes);
    let found = 0;
    for (let k = 0; k < columns.length; k++) {
      let taken = 0;
      for (let i = 0; i < size; i++) taken += x[i] * missed.share.values[i * columns.length + k];
      found += (missed.spreads[k] * (taken * missed.share.unit - columns[k])) ** 2;
    }
    return found;
  }

  function predict(places) {
    const codes = codesOf(places), row = [1, ...products(model.terms, codes)];
    const x = model.kept.map((column) => row[column]);
    let mean = 0, variance = quadratic(x, covariance), quantile = model.quantile;
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

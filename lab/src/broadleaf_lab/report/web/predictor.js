"use strict";
// The study's model in the page: what a configuration takes, with its interval. A configuration is a place among the
// levels for every factor.
function predictor(model) {
  const floats = (text) => new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const size = model.coefficients.length, upper = floats(model.covariance);
  const names = model.factors.map((f) => f.name);
  // What Python knows and the page does not (arithmetic) is not checked here.
  const test = (text) => { try { return condition(text, names); } catch { return () => true; } };
  const tests = model.rules.map((rule) => [rule.name, test(rule.text)]);
  const exist = model.factors.map((f) => (f.when ? test(f.when) : null));

  const values = (places) => Object.fromEntries(model.factors.map((f, i) => [f.name, f.values[places[i]]]));

  function row(places) {
    const config = values(places);
    const codes = model.factors.map((f, i) => (exist[i] && !exist[i](config) ? f.codes[places[i]].map(() => 0) : f.codes[places[i]]));
    const found = [1];
    for (const term of model.terms) {
      let product = [1];
      for (const i of term) product = product.flatMap((left) => codes[i].map((right) => left * right));
      found.push(...product);
    }
    return model.kept.map((column) => found[column]);
  }

  function predict(places) {
    const x = row(places);
    let mean = 0, variance = 0, k = 0;
    for (let i = 0; i < size; i++) mean += x[i] * model.coefficients[i];
    for (let i = 0; i < size; i++) for (let j = i; j < size; j++) variance += (i === j ? 1 : 2) * x[i] * x[j] * upper[k++];
    const half = model.quantile * Math.sqrt(Math.max(variance, 0));
    return { us: Math.exp(mean), low_us: Math.exp(mean - half), high_us: Math.exp(mean + half) };
  }

  // The names of the constraints that forbid a configuration.
  const forbidden = (places) => tests.filter(([, allows]) => !allows(values(places))).map(([name]) => name);
  const baseline = model.factors.map((f) => f.base);
  return { predict, forbidden, baseline };
}

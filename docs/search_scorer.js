// Pages for users come before those about how Broadleaf is made. The numbers below the function are those of Sphinx.
var Scorer = {
  score: ([page, title, anchor, description, score]) =>
    /^(adr|internals|lab)\/|^(benchmarks|changelog)$/.test(page) ? score / 4 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

"use strict";
// Conditions over factors in Python's syntax, such as `not no_log and batch > 8`: `condition(text, names)` gives a test
// of a configuration, or throws an Error that says what is wrong. What is typed is parsed, never run as code.
function condition(text, names) {
  const tokens = text.match(/\s*(?:[A-Za-z_]\w*|\d+(?:\.\d+)?|'[^']*'|"[^"]*"|==|!=|<=|>=|[<>()])|\s*\S/g) || [];
  const words = tokens.map((token) => token.trim()).filter((token) => token);
  let at = 0;
  const next = () => words[at];
  const take = () => words[at++];
  const wrong = (what) => new Error(what);

  function either() {
    let left = both();
    while (next() === "or") {
      take();
      const a = left, b = both();
      left = (config) => a(config) || b(config);
    }
    return left;
  }
  function both() {
    let left = negated();
    while (next() === "and") {
      take();
      const a = left, b = negated();
      left = (config) => a(config) && b(config);
    }
    return left;
  }
  function negated() {
    if (next() !== "not") return compared();
    take();
    const inner = negated();
    return (config) => !inner(config);
  }
  function compared() {
    if (next() === "(") {
      take();
      const inner = either();
      if (take() !== ")") throw wrong("a parenthesis is not closed");
      return inner;
    }
    const left = value();
    if (!["==", "!=", "<", "<=", ">", ">="].includes(next())) return (config) => Boolean(left(config));
    const sign = take(), right = value();
    return (config) => {
      const a = left(config), b = right(config);
      if (sign === "==") return a === b;
      if (sign === "!=") return a !== b;
      // Versions and other words that end in numbers are ordered by these: 3.9 comes before 3.13.
      const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
      return sign === "<" ? order < 0 : sign === "<=" ? order <= 0 : sign === ">" ? order > 0 : order >= 0;
    };
  }
  function value() {
    const word = take();
    if (word === undefined) throw wrong("something is missing at the end");
    if (/^\d/.test(word)) return () => Number(word);
    if (/^['"]/.test(word) && word.length > 1) return () => word.slice(1, -1);
    if (word === "True" || word === "False") return () => word === "True";
    if (!/^[A-Za-z_]/.test(word) || ["and", "or", "not"].includes(word)) throw wrong("\u201c" + word + "\u201d is not expected there");
    if (!names.includes(word)) throw wrong("there is no factor \u201c" + word + "\u201d");
    return (config) => config[word];
  }

  if (!words.length) return () => true;
  const test = either();
  if (at < words.length) throw wrong("\u201c" + next() + "\u201d is not expected there");
  return test;
}

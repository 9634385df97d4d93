// Axis ticks of a chart: round numbers.

/**
 * Ticks from zero to at least `most`, at most `limit` of them above zero.
 *
 * @param {number} most
 * @param {number} [limit]
 */
export function niceTicks(most, limit = 3) {
  const top = most > 0 ? most : 1;
  const step = niceStep(top / limit);
  const count = Math.ceil(top / step - 1e-9);
  return Array.from({ length: count + 1 }, (_, n) => Number((n * step).toPrecision(6)));
}

/** @param {number} least */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  const factor = [1, 2, 2.5, 5, 10].find((one) => one * power >= least * (1 - 1e-9)) ?? 10;
  return factor * power;
}

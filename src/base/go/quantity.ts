const POWERS = 'kMGTPE';

/** Bytes of a Kubernetes quantity of storage or memory, such as `10Gi` or `5e9`. 0 if invalid. */
export function quantityBytes(text: string): number {
  const match = /^(\d+(?:\.\d+)?)(?:([kKMGTPE])(i?)|e(\d+))?$/.exec(text);
  if (!match) return 0;
  const [, number = '', unit = '', binary = '', exponent = '0'] = match;
  const power = unit === '' ? 0 : POWERS.indexOf(unit === 'K' ? 'k' : unit) + 1;
  return Number(number) * 10 ** Number(exponent) * (binary === '' ? 1000 : 1024) ** power;
}

/** Bytes as a quantity, in the largest binary unit that divides them. */
export function quantityOf(bytes: number): string {
  let [number, power] = [bytes, 0];
  while (number > 0 && number % 1024 === 0 && power < POWERS.length) {
    number /= 1024;
    power++;
  }
  const unit = power === 0 ? '' : `${POWERS[power - 1]?.toUpperCase() ?? ''}i`;
  return `${number}${unit}`;
}

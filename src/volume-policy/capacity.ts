/** A Kubernetes quantity in billionths, exact: quantities have nine decimal places. */
export type Quantity = bigint & { readonly brand: 'Quantity' };

export const NO_QUANTITY = 0n as Quantity;
const PER_UNIT = 1_000_000_000n;
/** The largest Kubernetes quantity (k8s.io/apimachinery, pkg/api/resource: maxAllowed). */
const QUANTITY_MAX = (2n ** 63n - 1n) * PER_UNIT;
/** Beyond these limits every quantity is the largest or the smallest one. */
const EXPONENT_MAX = 40;
const DIGITS_MAX = 400;
/** Length of a quoted text in a message. */
const SHOWN_MAX = 40;

const DECIMAL = new Map([
  ['n', -9],
  ['u', -6],
  ['m', -3],
  ['', 0],
  ['k', 3],
  ['M', 6],
  ['G', 9],
  ['T', 12],
  ['P', 15],
  ['E', 18],
]);
const BINARY = ['Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'];

/** Undefined for an invalid quantity, such as `10GB`. Rounds away from zero, as Kubernetes does. */
export function parseQuantity(text: string): Quantity | undefined {
  const match = /^([-+]?)(\d*)(?:\.(\d*))?(n|u|m|k|[MGTPE]|[KMGTPE]i|[eE][-+]?\d+)?$/.exec(text);
  if (!match || text.length > DIGITS_MAX) return undefined;
  const [, sign = '', whole = '', places = '', suffix = ''] = match;
  if (whole === '' && places === '') return undefined;
  const digits = BigInt(whole + places);
  const binary = BINARY.indexOf(suffix);
  const decimal = binary >= 0 ? 0 : (DECIMAL.get(suffix) ?? Number(suffix.slice(1)));
  const exponent = Math.max(-DIGITS_MAX, Math.min(EXPONENT_MAX, decimal)) - places.length + 9;
  const factor = binary >= 0 ? 1024n ** BigInt(binary + 1) : 1n;
  const amount = scaled(digits * factor, exponent);
  const capped = amount > QUANTITY_MAX ? QUANTITY_MAX : amount;
  return (sign === '-' ? -capped : capped) as Quantity;
}

function scaled(digits: bigint, exponent: number): bigint {
  if (exponent >= 0) return digits * 10n ** BigInt(exponent);
  const divisor = 10n ** BigInt(-exponent);
  return (digits + divisor - 1n) / divisor;
}

/** Capacity of a volume: 0 if it cannot be parsed. */
export const quantityOrNone = (text: string | undefined): Quantity =>
  parseQuantity(text ?? '') ?? NO_QUANTITY;

export interface CapacityRange {
  /** 0 means no limit. */
  readonly low: Quantity;
  readonly high: Quantity;
}

/** Parses `low,high`; 0 or nothing means no limit. Returns a string if the text is invalid. */
export function parseRange(text: string): CapacityRange | string {
  const parts = (text === '' ? ',' : text).split(',').map((part) => part.trim());
  if (parts.length !== 2) return 'is no range: write "low,high", such as "0,100Gi" or "10Gi,"';
  const [low, high] = parts.map((part) => (part === '' ? NO_QUANTITY : parseQuantity(part)));
  if (low === undefined || high === undefined) {
    const wrong = (parts[low === undefined ? 0 : 1] ?? '').slice(0, SHOWN_MAX);
    return `has ${JSON.stringify(wrong)}, which is no quantity: write one such as 100Gi or 500M`;
  }
  if (high < low && (low === 0n || high !== 0n)) {
    return 'has a lower end above the upper one: write the smaller quantity first, or leave the upper one out for no limit';
  }
  return { low, high };
}

/** Both ends are inclusive. Velero: internal/resourcepolicies/volume_resources.go, isInRange. */
export const isInRange = ({ low, high }: CapacityRange, quantity: Quantity): boolean =>
  (low === 0n && high >= quantity) ||
  (high === 0n && low <= quantity) ||
  (low !== 0n && high !== 0n && low <= quantity && quantity <= high);

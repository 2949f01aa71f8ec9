const DAY_SECONDS = 86_400;
/** Maximum size of the cache, in days. Our choice: twice the five years of a search. */
const DAYS_MAX = 4096;

/** Node accepts names in any case, but the folders and files of zones start with a capital. */
const NAME = /^[A-Z][^/]*(?:\/[A-Z][^/]*)*$/;

/** Offsets within one day of UTC: `first` until `changesAt`, then `last`. */
interface Day {
  readonly first: number;
  readonly last: number;
  readonly changesAt: number;
}

/** A time zone: its offset from UTC at any time, from Node's data. */
export class Zone {
  readonly name: string;
  readonly #format: Intl.DateTimeFormat | undefined;
  readonly #days = new Map<number, Day>();

  private constructor(name: string, format: Intl.DateTimeFormat | undefined) {
    this.name = name;
    this.#format = format;
  }

  static readonly utc = new Zone('UTC', undefined);

  /** Undefined for an unknown zone. Offsets such as `+05:00` do not count, and case does. */
  static of(name: string): Zone | undefined {
    if (name === 'UTC') return Zone.utc;
    if (!NAME.test(name)) return undefined;
    try {
      const format = new Intl.DateTimeFormat('en-US', {
        timeZone: name,
        timeZoneName: 'longOffset',
      });
      const { timeZone } = format.resolvedOptions();
      const isOtherwiseWritten = timeZone !== name && timeZone.toLowerCase() === name.toLowerCase();
      return isOtherwiseWritten ? undefined : new Zone(name, format);
    } catch {
      return undefined;
    }
  }

  /** Seconds east of UTC. `seconds` counts from 1970. */
  offsetAt(seconds: number): number {
    if (!this.#format) return 0;
    const { first, last, changesAt } = this.#dayOf(Math.floor(seconds / DAY_SECONDS));
    return seconds < changesAt ? first : last;
  }

  #dayOf(number: number): Day {
    const known = this.#days.get(number);
    if (known) return known;
    const day = this.#lookedUp(number * DAY_SECONDS);
    if (this.#days.size >= DAYS_MAX) this.#days.clear();
    this.#days.set(number, day);
    return day;
  }

  /** Assumes at most one change a day, which holds for all zones. */
  #lookedUp(start: number): Day {
    const [first, last] = [this.#ask(start), this.#ask(start + DAY_SECONDS)];
    if (first === last) return { first, last, changesAt: Infinity };
    let [before, changesAt] = [start, start + DAY_SECONDS];
    while (changesAt - before > 1) {
      const middle = Math.floor((before + changesAt) / 2);
      if (this.#ask(middle) === first) before = middle;
      else changesAt = middle;
    }
    return { first, last, changesAt };
  }

  #ask(seconds: number): number {
    const text = this.#format?.format(seconds * 1000) ?? '';
    const match = /GMT([-+])(\d\d):(\d\d)(?::(\d\d))?$/.exec(text);
    if (!match) return 0;
    const [, sign, ...parts] = match;
    const [hours = 0, minutes = 0, rest = 0] = parts.map((part) => Number(part ?? 0));
    return (sign === '-' ? -1 : 1) * (hours * 3600 + minutes * 60 + rest);
  }
}

/** The zone of this process, from the variable `TZ`, as in Go. */
export function localZone(): Zone {
  return Zone.of(new Intl.DateTimeFormat().resolvedOptions().timeZone) ?? Zone.utc;
}

import type { Zone } from './zone.ts';

/** The numbers allowed in each field. */
export interface CronFields {
  readonly minutes: ReadonlySet<number>;
  readonly hours: ReadonlySet<number>;
  readonly daysOfMonth: ReadonlySet<number>;
  /** From 1. */
  readonly months: ReadonlySet<number>;
  /** Sunday is 0. */
  readonly daysOfWeek: ReadonlySet<number>;
}

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86_400;
/** go-cron: spec.go, defaultSearchYears. */
const YEARS = 5;

/**
 * The next time, in whole seconds since 1970; undefined if there is none within five years. Every
 * step copies go-cron (spec.go, Next, v0.15.0). At a change of the clocks the result follows these
 * steps and may surprise.
 */
export function nextTime(fields: CronFields, zone: Zone, after: number): number | undefined {
  // With an empty field the search would try each minute of five years.
  if (Object.values(fields).some((numbers: ReadonlySet<number>) => numbers.size === 0)) {
    return undefined;
  }
  const search = new Search(fields, zone, Math.floor(after) + 1);
  const lastYear = search.year + YEARS;
  while (search.year <= lastYear) {
    const hasWrapped =
      search.wrapsAtMonth() ||
      search.wrapsAtDay() ||
      search.wrapsAtHour() ||
      search.wrapsAtMinute() ||
      search.wrapsAtSecond();
    if (!hasWrapped) return search.at;
  }
  return undefined;
}

/** Goes from field to field. Each step returns whether the field above must be checked again. */
class Search {
  readonly #fields: CronFields;
  readonly #zone: Zone;
  #at: number;
  /** Whether a field has advanced and reset all lower fields. Only the first one resets. */
  #isCut = false;

  constructor(fields: CronFields, zone: Zone, at: number) {
    this.#fields = fields;
    this.#zone = zone;
    this.#at = at;
  }

  get at(): number {
    return this.#at;
  }

  get year(): number {
    return this.#local.getUTCFullYear();
  }

  /** The local time, in the UTC fields of a Date. */
  get #local(): Date {
    return new Date((this.#at + this.#zone.offsetAt(this.#at)) * 1000);
  }

  get #hour(): number {
    return this.#local.getUTCHours();
  }

  wrapsAtMonth(): boolean {
    while (!this.#fields.months.has(this.#local.getUTCMonth() + 1)) {
      const local = this.#local;
      if (!this.#isCut) this.#set(local.getUTCFullYear(), local.getUTCMonth(), 1);
      this.#isCut = true;
      this.#addDate(1, 0);
      if (this.#local.getUTCMonth() === 0) return true;
    }
    return false;
  }

  wrapsAtDay(): boolean {
    while (!this.#isDay(this.#local)) {
      const local = this.#local;
      if (!this.#isCut) this.#set(local.getUTCFullYear(), local.getUTCMonth(), local.getUTCDate());
      this.#isCut = true;
      const before = this.#at;
      this.#addDate(0, 1);
      // A day that the zone skips, for example in Samoa. go-cron loops forever here.
      if (this.#at <= before) this.#at = before + DAY;
      // The clocks skip midnight.
      const hour = this.#hour;
      if (hour > 12) this.#at += (24 - hour) * HOUR;
      else this.#at -= hour * HOUR;
      if (this.#local.getUTCDate() === 1) return true;
    }
    return false;
  }

  /** Both must match. */
  #isDay(local: Date): boolean {
    const { daysOfMonth, daysOfWeek } = this.#fields;
    return daysOfMonth.has(local.getUTCDate()) && daysOfWeek.has(local.getUTCDay());
  }

  wrapsAtHour(): boolean {
    const { hours } = this.#fields;
    while (!hours.has(this.#hour)) {
      if (!this.#isCut) {
        const local = this.#local;
        const [year, month, day] = [
          local.getUTCFullYear(),
          local.getUTCMonth(),
          local.getUTCDate(),
        ];
        this.#set(year, month, day, local.getUTCHours());
      }
      this.#isCut = true;
      const before = this.#hour;
      this.#at += HOUR;
      const hour = this.#hour;
      // A time within a skipped hour is due right after it.
      if (hour - before === 2 && hours.has(hour - 1)) break;
      if (hour === 0) return true;
    }
    return false;
  }

  wrapsAtMinute(): boolean {
    while (!this.#fields.minutes.has(this.#local.getUTCMinutes())) {
      if (!this.#isCut) this.#at = Math.floor(this.#at / MINUTE) * MINUTE;
      this.#isCut = true;
      this.#at += MINUTE;
      if (this.#local.getUTCMinutes() === 0) return true;
    }
    return false;
  }

  /** Times are at the start of a minute. */
  wrapsAtSecond(): boolean {
    const second = this.#local.getUTCSeconds();
    if (second === 0) return false;
    this.#at += MINUTE - second;
    return true;
  }

  /** Like Go's `AddDate`. */
  #addDate(months: number, days: number): void {
    const local = this.#local;
    this.#set(
      local.getUTCFullYear(),
      local.getUTCMonth() + months,
      local.getUTCDate() + days,
      local.getUTCHours(),
      local.getUTCMinutes(),
      local.getUTCSeconds(),
    );
  }

  /** Like Go's `time.Date`, also for local times that the clocks skip or repeat. */
  #set(year: number, month: number, day: number, hour = 0, minute = 0, second = 0): void {
    const shown = Date.UTC(year, month, day, hour, minute, second) / 1000;
    const offset = this.#zone.offsetAt(shown);
    this.#at = offset === 0 ? shown : shown - this.#zone.offsetAt(shown - offset);
  }
}

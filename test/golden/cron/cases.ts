/** What is asked of the cron library of Velero's server. */
export interface CronCase {
  readonly spec: string;
  /** The zone of the server. */
  readonly zone: string;
  /** RFC 3339. */
  readonly from: string;
}

const FROM = '2026-11-21T02:28:45Z';

/** Each in UTC, from a time in the middle of a minute, and from one at the end of a leap day. */
const SPECS = [
  ...['* * * * *', '*/5 * * * *', '0 2 * * *', '30 4 1,15 * *', '15 10 * * mon-fri'],
  ...['0 0 1 1 *', '0 22-2 * * *', '50-10/5 * * * *', '0 0 * nov-feb *', '0 3 * * fri-mon'],
  ...['0 0 28-3 * *', '0 3 1 * 1', '0 0 13 * 5', '0 0 25-31 * FRI', '0 0 1-7 * MON'],
  ...['0 0 29 2 *', '0 0 29 2 1', '0 0 30 2 *', '0 0 31 4,6,9,11 *', '0 0 31 * *'],
  ...['0 0 * * 0', '0 0 * * 7', '0 0 * * 5-7', '0 0 * * 6-0', '0 0 * * 7-1', '0 0 * * sun,7'],
  ...['? ? ? ? ?', '*-5 * * * *', '?/15 * * * *', '5/15 * * * *', '5-5 * * * *', '10/59 * * * *'],
  ...['+5 * * * *', '05 02 * * *', '*/1 * * * *', '1-10/1 * * * *', '1,2,,3 * * * *', ', * * * *'],
  ...['* , * * *', '* * , * *', '* * * , *', '* * * * ,', '70-5 * * * *', '64-3 * * * *'],
  ...['61-5/2 * * * *', '5-0 * * * *', '* * 5-0 * *', '* * * JAN,Dec *', '* * * * SUN-tue'],
  ...['*/7 */5 */3 */2 *', '0 */6 * * 1-5', '59 23 31 12 *', '0 12 * 2 0', '*/59 * * * *'],
  ...['@yearly', '@annually', '@monthly', '@weekly', '@daily', '@midnight', '@hourly'],
  ...['@every 1s', '@every 90s', '@every 1h30m', '@every 6h', '@every 1.5s', '@every 1m0.9s'],
  ...['@every +1h', '@every .5h', '@every 1.h', '@every 2562047h', '@every 3000us1s'],
  ...['@every 1000000\u00b5s', '@every 1000000\u03bcs', '@triggered', '@manual', '@none'],
  ...['\t0  2 * *\n*', ' 0 2 * * *', '0 2 * * * ', '0\u00a02\u00a0* * *', '0 2 *\u0085* *'],
  ...['TZ=UTC 0 2 * * *', 'CRON_TZ=America/New_York 0 2 * * *', 'TZ="Asia/Tokyo" 0 2 * * *'],
  ...["TZ='Asia/Kolkata' 30 5 * * *", 'TZ=Asia/Kathmandu @daily', 'TZ=Europe/Berlin   @weekly  '],
  ...['TZ=UTC @every 1h', 'CRON_TZ=Etc/GMT+5 0 0 * * *', 'TZ=US/Eastern 0 0 * * *', 'TZ=Local @daily'],
  ...['007 * * * *', '59-0 * * * *', '5/10 * * * *', '*,1 * * * *', '?-5 * * * *', '?-x * * * *', '0 * * * sun-sat'],
  ...['0 0 * * sat-sun', '0 0 * * 1-7/2', '0 0 25-5 * *', '0 0 31-1 * *', '0 1-3,5 * * *', '0 0 * * MON-Fri'],
  ...['0 1 * * *   ', '@every 10000000h', '@every 0h60m', '0 0 1-31 * 1', '0 0 */1 * 1', '0 0 ? * ?', '0 0 1 * ?'],
  ...['TZ=America/Port-au-Prince 0 2 * * *', 'TZ=America/Port_of_Spain @daily', 'TZ=Africa/Dar_es_Salaam @daily'],
  ...['TZ=GMT @daily', 'TZ=Etc/GMT0 @daily', 'TZ=GB @daily', 'TZ=EST5EDT @daily', 'TZ=Zulu @daily', 'TZ=W-SU @daily'],
  ...['TZ=Australia/Lord_Howe 0 2 * * *', 'TZ=Pacific/Apia 0 0 * * *', 'TZ=EST 0 0 * * *'],
];

/** Refused, most of them. */
const WRONG = [
  ...['', ' ', '*', '* * * *', '* * * * * *', '0 0 0 1 1 *', 'a b c d e', '60 * * * *', '* 24 * * *'],
  ...['* * 0 * *', '* * 32 * *', '* * * 0 *', '* * * 13 *', '* * * * 8', '* * * foo *', '* * * * bar'],
  ...['-1 * * * *', '1- * * * *', '1-2-3 * * * *', '*/0 * * * *', '*/-5 * * * *', '*/a * * * *'],
  ...['*/60 * * * *', '*/61 * * * *', '0 */24 * * *', '0 0 */31 * *', '0 0 1 */12 *', '0 0 * * */8'],
  ...['10-20/11 * * * *', '10-20/10 * * * *', '50-10/21 * * * *', '5/55 * * * *', '1/2/3 * * * *'],
  ...['1-2-3/4/5 * * * *', '** * * * *', '1.5 * * * *', '0x1 * * * *', '1_0 * * * *', '99999999999999999999 * * * *'],
  ...['9007199254740991 * * * *', '9223372036854775808 * * * *', '*/9223372036854775808 * * * *'],
  ...['H * * * *', '1,H(1-5) * * * *', '* * * * H', 'h * * * *', '* * L * *', '* * l-3 * *', '* * 15W * *'],
  ...['* * * * 5#3', '* * * * FRI#L', '* * * * 5L', '* * * * L', 'é * * * *', '"1" * * * *', '\\ * * * *'],
  ...['1\u200b * * * *', '\ud83d\ude00 * * * *', '@', '@reboot', '@Daily', '@daily ', ' @daily', '@every', '@every '],
  ...['@every 1', '@every h', '@every 1x', '@every 1d', '@every -1h', '@every 0', '@every 500ms', '@every 999.9ms'],
  ...['@every 1h1', '@every .', '@every .s', '@every 1..5s', '@every  1h', '@every 1h ', '@every 9999999999h'],
  ...['@every 9223372036854775808ns', '@every 1h"', '@every 1\u00e9', '@every + 1h', '@every'],
  ...['TZ=UTC', 'TZ= 0 2 * * *', 'TZ=UTC ', 'TZ=UTC  \t ', 'TZ="" @daily', 'TZ=Nowhere/City 0 2 * * *'],
  ...['CRON_TZ=Etc/GMT+99 @daily', 'TZ=/etc/passwd @daily', 'TZ=../etc @daily', 'TZ=Euro\u00e9 @daily'],
  ...["TZ=a'b @daily", 'TZ="UTC @daily', 'TZ=+05:00 @daily', `TZ=${'a'.repeat(65)} @daily`, 'tz=UTC @daily'],
  ...['TZ=europe/berlin @daily', 'TZ=EUROPE/BERLIN @daily', 'TZ=utc @daily', 'TZ=us/eastern @daily', 'TZ=local @daily'],
  ...['TZ=Europe/berlin @daily', 'TZ=Etc/gmt+5 @daily', 'TZ=\'UTC" @daily', 'TZ=\' @daily', `TZ=${'a'.repeat(64)} @daily`],
  ...['*/1.5 * * * *', '1/100 * * * *', '1-5/9 * * * *', '0/1 * * * *', '0/60 * * * *', '5-5/1 * * * *', '5-5/2 * * * *'],
  ...['* * * january *', '* * * * sunday', '* * 1-2-3 * *', '* * * * 8-1', '* * * 13-1 *', '* 24-1 * * *', '* * * * 7/2'],
  ...['@DAILY', '@Hourly', '@weekly ', '@every1h', '@every 1w', '@every 1s\t', '@manual ', '@TRIGGERED', '*/5,*/60 * * * *'],
  ...['TZ=UTC\t@daily', 'TZ=UTC @nope', 'TZ=UTC * * *', 'TZ=UTC TZ=UTC @daily', '* '.repeat(513)],
  ...[`0 2 * * ${' '.repeat(1016)}*`, `0 2 * * ${' '.repeat(1015)}*`, 'é'.repeat(513)],
];

/**
 * Where clocks are changed: what is due in an hour that is skipped, that comes twice, around
 * midnight, and on the other half of the earth.
 */
const CHANGES: readonly (readonly [zone: string, from: string])[] = [
  ['Europe/Berlin', '2026-03-28T12:00:00Z'],
  ['Europe/Berlin', '2026-10-24T12:00:00Z'],
  ['America/New_York', '2026-03-07T12:00:00Z'],
  ['America/New_York', '2026-10-31T12:00:00Z'],
  // Midnight does not exist.
  ['America/Sao_Paulo', '2018-11-03T12:00:00Z'],
  ['America/Sao_Paulo', '2019-02-16T00:00:00Z'],
  ['America/Santiago', '2025-09-06T00:00:00Z'],
  ['Africa/Cairo', '2025-04-24T00:00:00Z'],
  // Half an hour.
  ['Australia/Lord_Howe', '2026-10-03T00:00:00Z'],
  ['Australia/Lord_Howe', '2026-04-03T12:00:00Z'],
  ['Asia/Kathmandu', '2026-04-03T12:00:00Z'],
  // A day that does not exist.
  ['Pacific/Apia', '2011-12-29T00:00:00Z'],
];
const AT_CHANGES = [
  ...['30 2 * * *', '0 2 * * *', '0 3 * * *', '30 1 * * *', '*/30 * * * *', '0 * * * *', '0 0 * * *'],
  ...['30 0 * * *', '15 1,2,3 * * *', '*/20 2 * * *', '0 0 1 * *', '@daily', '@hourly', '@every 1h'],
  ...['0 23 * * *', '59 23 * * *', '0 0 * * sun', '0 0-3 * * sat,sun'],
];

/** Of these the library looks for ever where a zone has left out a day. */
const NEVER_ANSWERED = ['0 0 1 * *', '0 0 * * sun', '0 0-3 * * sat,sun'];

export const CASES: readonly CronCase[] = [
  ...SPECS.flatMap((spec) =>
    [FROM, '2024-02-29T23:59:59Z'].map((from) => ({ spec, zone: 'UTC', from })),
  ),
  ...SPECS.filter((_, index) => index % 3 === 0).map((spec) => ({
    spec,
    zone: 'Europe/Berlin',
    from: '2026-12-31T22:59:59Z',
  })),
  ...WRONG.map((spec) => ({ spec, zone: 'UTC', from: FROM })),
  ...CHANGES.flatMap(([zone, from]) =>
    AT_CHANGES.filter((spec) => zone !== 'Pacific/Apia' || !NEVER_ANSWERED.includes(spec)).map(
      (spec) => ({ spec, zone, from }),
    ),
  ),
];

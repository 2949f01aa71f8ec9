import { ageText } from '../../base/index.ts';
import { CALENDAR_DAYS, type CalendarDay, calendarOf } from './calendar.ts';
import { type Html, html, named } from './html.ts';
import { documentOf, moreOf, numberText, rateOf, runPath, signOf, timeOf } from './layout.ts';
import { listingPath, type ListingQuery } from './listing.ts';
import { isMoving, movingSections, totalsOf } from './volume-rows.ts';
import { type Problem, problemsOf } from './problems.ts';
import type { RunRow } from './rows.ts';
import type { RunMessages } from './run-parts.ts';
import {
  backupsSection,
  locationsSection,
  repositoriesSection,
  restoresSection,
  schedulesSection,
} from './tables.ts';
import { wrongCount } from './signatures.ts';
import type { World } from './view.ts';
import type { PageVolume } from './volumes.ts';

const PROBLEMS_MAX = 20;
const STANDING_SECTIONS = [
  ['schedules', 'Schedules'],
  ['calendar', 'Calendar'],
  ['backups', 'Backups'],
  ['restores', 'Restores'],
  ['repositories', 'Repositories'],
  ['locations', 'Locations'],
] as const;

export interface PageOptions {
  readonly world: World;
  readonly volumesOf: (run: RunRow) => readonly PageVolume[];
  /** Stored errors and warnings of the shown run, or why they are unreadable. */
  readonly messages?: RunMessages | string | undefined;
  /** Whether files of backups are available. */
  readonly hasFiles: boolean;
  /** Undefined without a login. */
  readonly logout: Html | undefined;
}

export function overviewDocument(
  { world, volumesOf, logout }: PageOptions,
  query: ListingQuery,
): string {
  const problems = problemsOf(world);
  const moving = movingSections(world, volumesOf);
  const sections = [
    ['attention', 'Attention'],
    ...moving.map(({ id, title }) => [id, title] as const),
    ...STANDING_SECTIONS,
  ] as const;
  return documentOf({
    title: `Backups of ${world.namespace}`,
    isLive: true,
    footer: footerOf(world, logout),
    header: html`<h1>Backups</h1>
      <p class="dim">Longshore, namespace ${named(world.namespace)}</p>
      <nav aria-label="Parts of this page">
        <ul>
          ${sections.map(([id, title]) => html`<li><a href="#${id}">${title}</a></li>`)}
        </ul>
      </nav>`,
    main: html`${outagesOf(world)} ${figuresOf(world, problems.length)}
      ${problemsSection(problems, world.nowMs)} ${moving.map(({ body }) => body)}
      ${schedulesSection(world)} ${calendarSection(world, query)} ${backupsSection(world, query)}
      ${restoresSection(world)} ${repositoriesSection(world)} ${locationsSection(world)}
      <p class="dim">As of ${timeOf(world.nowMs, world.nowMs)}, in UTC.</p>`,
  });
}

export const footerOf = (_world: World, logout: Html | undefined): Html =>
  html`${logout} This page only shows; backups are made and restored by
    <code>longshore backup</code> and <code>longshore restore</code>.`;

/** Warnings about outdated data, above all other content. */
export const outagesOf = ({ outages }: World): Html | undefined =>
  outages.length === 0
    ? undefined
    : html`<div class="note tone-doubtful" role="alert">
        <p>Not all of this is as it is now:</p>
        <ul>
          ${outages.map((text) => html`<li>${named(text)}</li>`)}
        </ul>
      </div>`;

function figuresOf(world: World, problems: number): Html {
  const { backups, restores, volumes, newestWhole, nowMs } = world;
  const underWay = volumes?.underWay ?? [];
  const totals = totalsOf(underWay.filter(isMoving));
  const wrong = wrongCount(world.trust);
  const figures: readonly (readonly [string, string])[] = [
    ...(wrong > 0 ? [[`✗ ${numberText(wrong)}`, 'changed or missing in the bucket'] as const] : []),
    [numberText(problems), 'to look at'],
    newestWhole
      ? [`${ageText((nowMs - newestWhole.beganMs) / 1000)} ago`, 'newest complete backup']
      : ['none', 'complete backup'],
    [numberText(backups.filter(({ isOver }) => !isOver).length), 'backups under way'],
    [numberText(restores.filter(({ isOver }) => !isOver).length), 'restores under way'],
    [numberText(totals.count), 'volumes being moved'],
    [totals.bytesPerSecond > 0 ? rateOf(totals.bytesPerSecond) : '0 B/s', 'together'],
    [numberText(underWay.length - totals.count), 'operations waiting'],
  ];
  return html`<ul class="figures" aria-label="Figures">
    ${figures.map(([figure, what]) => html`<li><strong>${figure}</strong> ${what}</li>`)}
  </ul>`;
}

function problemsSection(problems: readonly Problem[], nowMs: number): Html {
  const shown = problems.slice(0, PROBLEMS_MAX);
  return html`<section aria-labelledby="attention">
    <h2 id="attention">Attention</h2>
    ${
      shown.length === 0
        ? html`<p class="tone-good">
            ✓ Nothing failed in the last seven days, and nothing is out of order.
          </p>`
        : html`<ul class="problems">
            ${shown.map((problem) => problemItem(problem, nowMs))}
          </ul>`
    }
    ${moreOf(problems.length, shown.length)}
  </section>`;
}

function problemItem({ tone, subject, run, what, remedy, atMs }: Problem, nowMs: number): Html {
  const heading =
    run === undefined || run.name === ''
      ? named(subject)
      : html`<a href="${runPath(run)}">${named(subject)}</a>`;
  return html`<li class="tone-${tone}">
    <p>
      <strong><span aria-hidden="true">${signOf(tone)}</span> ${heading}</strong>
      ${timeOf(atMs, nowMs)}
    </p>
    <p>${named(what)}</p>
    <p>${named(remedy)}</p>
  </li>`;
}

const WEEKDAYS = ['Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun'] as const;

function calendarSection({ backups, nowMs }: World, query: ListingQuery): Html {
  const days = calendarOf(backups, nowMs);
  const [first] = days;
  // Monday is the first day of a week.
  const blanks = first ? (new Date(`${first.date}T00:00:00Z`).getUTCDay() + 6) % 7 : 0;
  const cells: (CalendarDay | undefined)[] = [
    ...Array.from({ length: blanks }, () => undefined),
    ...days,
  ];
  const weeks: (CalendarDay | undefined)[][] = [];
  for (let at = 0; at < cells.length; at += 7) weeks.push(cells.slice(at, at + 7));
  return html`<section aria-labelledby="calendar">
    <h2 id="calendar">Calendar</h2>
    <table class="calendar">
      <caption>
        Backups of the last ${CALENDAR_DAYS} days by the day on which they began (UTC): how many
        there were, and how the worst one ended
      </caption>
      <thead>
        <tr>
          ${WEEKDAYS.map((day) => html`<th scope="col">${day}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${weeks.map(
          (week) =>
            html`<tr>
              ${Array.from({ length: 7 }, (_, at) => dayCell(week[at], query))}
            </tr>`,
        )}
      </tbody>
    </table>
  </section>`;
}

function dayCell(day: CalendarDay | undefined, query: ListingQuery): Html {
  if (!day) return html`<td></td>`;
  const { date, good, doubtful, bad, underWay, worst } = day;
  const total = good + doubtful + bad + underWay;
  const title = html`<span class="day"><time datetime="${date}">${date.slice(5)}</time></span>`;
  if (worst === undefined) return html`<td>${title}<span class="dim">0</span></td>`;
  const parts = [
    ...(bad > 0 ? [`${bad} failed`] : []),
    ...(doubtful > 0 ? [`${doubtful} partially failed`] : []),
    ...(underWay > 0 ? [`${underWay} under way`] : []),
    ...(good > 0 ? [`${good} completed`] : []),
  ];
  const worstCount = { bad, doubtful, plain: underWay, good }[worst];
  const count = worstCount === total ? numberText(total) : `${worstCount}/${numberText(total)}`;
  const path = listingPath({ ...query, phase: '', prefix: '' }, { day: date });
  return html`<td class="tone-${worst}">
    ${title}<a href="${path}" aria-label="${date}: ${parts.join(', ')}"
      >${signOf(worst)} ${count}</a
    >
  </td>`;
}

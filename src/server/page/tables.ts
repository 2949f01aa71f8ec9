import { toneOf, validLabel } from '../../kube/index.ts';
import { type Html, html, type HtmlValue, named } from './html.ts';
import {
  backupLink,
  bytesOf,
  moreOf,
  numberText,
  phaseOf,
  restoreLink,
  tableOf,
  timeOf,
} from './layout.ts';
import { listBackups, type Listing, listingPath, type ListingQuery } from './listing.ts';
import type { RepositoryRow, RunRow, ScheduleRow } from './rows.ts';
import { signatureOf, signaturesOf } from './signatures.ts';
import type { World } from './view.ts';
import { repositoryKey } from './volumes.ts';

/** Our choice: for more rows use the command line. */
const ROWS_MAX = 200;
const RESTORES_SHOWN = 20;

/** Schedules with their next run and the outcome of their last backup. */
export function schedulesSection(world: World): Html {
  const newest = newestOf(world.backups);
  const { schedules, nowMs } = world;
  const shown = schedules.slice(0, ROWS_MAX);
  return html`<section aria-labelledby="schedules">
    <h2 id="schedules">Schedules</h2>
    ${tableOf({
      id: 'all-schedules',
      caption: 'Schedules; times are UTC',
      columns: ['Schedule', 'When', 'State', 'Next run', 'Last backup', 'Outcome', 'Now'],
      rows: shown.map((schedule) => {
        const { last, whole, current } = newest.get(validLabel(schedule.name)) ?? {};
        return [
          named(schedule.name),
          html`<code>${schedule.cron}</code>`,
          [schedule.isPaused ? 'paused' : phaseOf(schedule.phase), ' ', whyOf(schedule)],
          nextOf(schedule, nowMs),
          last ? [backupLink(last.name), ' ', timeOf(last.beganMs, nowMs)] : 'none yet',
          last ? [outcomeOf(last), lastWholeOf(last, whole, nowMs)] : '',
          current && [backupLink(current.name), ' ', phaseOf(current.phase)],
        ];
      }),
      empty: 'There is no schedule.',
    })}
    ${moreOf(schedules.length, shown.length)}
  </section>`;
}

/** The message for a bad phase. */
const whyOf = ({ phase, why }: { readonly phase: string; readonly why: string }): HtmlValue =>
  why !== '' && toneOf(phase) === 'bad' && named(why);

/** After a bad backup, the age of the last good backup matters. */
function lastWholeOf(last: RunRow, whole: RunRow | undefined, nowMs: number): HtmlValue {
  if (last === whole) return undefined;
  return whole
    ? ['; the last good one: ', backupLink(whole.name), ' ', timeOf(whole.beganMs, nowMs)]
    : '; none was good so far';
}

interface Newest {
  last?: RunRow;
  /** The newest `Completed` backup. */
  whole?: RunRow;
  current?: RunRow;
}

/** The newest finished and the newest running backup, by the schedule's label. */
function newestOf(backups: readonly RunRow[]): ReadonlyMap<string, Newest> {
  const found = new Map<string, Newest>();
  for (const row of backups) {
    if (row.schedule === '' || row.isSynced) continue;
    const newest = found.get(row.schedule) ?? {};
    found.set(row.schedule, newest);
    if (row.isOver) newest.last ??= row;
    else newest.current ??= row;
    if (row.phase === 'Completed') newest.whole ??= row;
  }
  return found;
}

function nextOf({ isPaused, isManual, phase, nextMs }: ScheduleRow, nowMs: number): HtmlValue {
  if (isPaused || phase === 'FailedValidation') return 'none';
  if (isManual) return 'by hand only';
  if (nextMs === undefined) return 'cannot be told';
  return nextMs <= nowMs ? ['due since ', timeOf(nextMs, nowMs)] : timeOf(nextMs, nowMs);
}

const outcomeOf = ({ phase, errors, warnings }: RunRow): HtmlValue => [
  phaseOf(phase),
  errors > 0 && `, ${numberText(errors)} errors`,
  warnings > 0 && `, ${numberText(warnings)} warnings`,
];

/** A page of the matching backups. */
export function backupsSection(world: World, query: ListingQuery): Html {
  const listing = listBackups(world.backups, query);
  const { rows, total } = listing;
  const isFiltered = query.phase !== '' || query.prefix !== '' || query.day !== '';
  const phases = [...new Set(world.backups.map(({ phase }) => phase))].sort().slice(0, 30);
  if (query.phase !== '' && !phases.includes(query.phase)) phases.push(query.phase);
  return html`<section aria-labelledby="backups">
    <h2 id="backups">Backups</h2>
    <form method="get" action="/#backups" role="search" aria-label="Backups">
      <div>
        <label for="phase">Phase</label>
        <select id="phase" name="phase">
          <option value="">all</option>
          ${phases.map((phase) =>
            phase === query.phase
              ? html`<option value="${phase}" selected>${phase}</option>`
              : html`<option value="${phase}">${phase}</option>`,
          )}
        </select>
      </div>
      <div>
        <label for="prefix">Name begins with</label>
        <input
          id="prefix"
          name="prefix"
          value="${query.prefix}"
          autocomplete="off"
          spellcheck="false"
        />
      </div>
      <div>
        <label for="day">Day (UTC)</label>
        <input id="day" name="day" type="date" value="${query.day}" />
      </div>
      <button type="submit">Show</button>
      ${isFiltered && html`<a href="/#backups">all backups</a>`}
    </form>
    ${tableOf({
      id: 'all-backups',
      caption: `${numberText(total)} ${total === 1 ? 'backup' : 'backups'}${isFiltered ? ' that match' : ''}, newest first; page ${listing.page} of ${listing.pages}`,
      columns: [
        'Backup',
        'Phase',
        '#Errors',
        '#Warnings',
        'Began',
        'Expires',
        'Location',
        'Signature',
      ],
      rows: rows.map((row) => [
        backupLink(row.name),
        [phaseOf(row.phase), row.isDeleting && ' (being deleted)'],
        numberText(row.errors),
        numberText(row.warnings),
        timeOf(row.beganMs, world.nowMs),
        timeOf(row.expiresMs, world.nowMs, 'never'),
        named(row.location),
        signatureOf(world.trust, row),
      ]),
      empty: isFiltered ? 'No backup matches.' : 'There is no backup.',
    })}
    ${pagesOf(listing, (page) => listingPath(query, { page }))}
  </section>`;
}

/** Links to the previous and the next page. */
export function pagesOf(
  { page, pages }: Listing<unknown>,
  pathOf: (page: number) => string,
): HtmlValue {
  if (pages === 1) return undefined;
  return html`<nav class="pages" aria-label="Pages">
    ${page > 1 && html`<a href="${pathOf(page - 1)}" rel="prev">Newer</a>`}
    <span>Page ${page} of ${pages}</span>
    ${page < pages && html`<a href="${pathOf(page + 1)}" rel="next">Older</a>`}
  </nav>`;
}

export function restoresSection({ restores, nowMs }: World): Html {
  const shown = restores.slice(0, RESTORES_SHOWN);
  return html`<section aria-labelledby="restores">
    <h2 id="restores">Restores</h2>
    ${tableOf({
      id: 'newest-restores',
      caption: 'Newest restores',
      columns: ['Restore', 'Backup', 'Phase', '#Errors', '#Warnings', 'Began', 'Ended'],
      rows: shown.map((row) => [
        restoreLink(row.name),
        row.of === '' ? '' : backupLink(row.of),
        phaseOf(row.phase),
        numberText(row.errors),
        numberText(row.warnings),
        timeOf(row.beganMs, nowMs),
        timeOf(row.endedMs, nowMs),
      ]),
      empty: 'There is no restore.',
    })}
    ${moreOf(restores.length, shown.length)}
  </section>`;
}

export function repositoriesSection(world: World): Html {
  const { repositories, nowMs } = world;
  const rank = ({ phase, damagedContents }: RepositoryRow): number =>
    damagedContents > 0 ? 0 : phase === 'Ready' ? 2 : 1;
  const sorted = [...repositories].sort((a, b) => rank(a) - rank(b));
  const shown = sorted.slice(0, ROWS_MAX);
  return html`<section aria-labelledby="repositories">
    <h2 id="repositories">Repositories</h2>
    ${tableOf({
      id: 'all-repositories',
      caption:
        'Repositories, those with problems first. Size: what all its packs had in the bucket at the last verification. Moved: what the volumes of the backups that are there held, and how much of it was new when it was backed up.',
      columns: [
        'Repository',
        'Namespace',
        'Location',
        'Phase',
        'Last maintenance',
        'Last verification',
        '#Size',
        'Moved',
        'Problem',
      ],
      rows: shown.map((row) => [
        named(row.name),
        named(row.namespace),
        named(row.location),
        [phaseOf(row.phase), row.type !== 'kopia' && ` (${row.type})`],
        [
          timeOf(row.lastMaintenanceMs, nowMs, 'never'),
          row.lastMaintenanceFailed !== undefined && ', the last try failed',
        ],
        verificationOf(row, nowMs),
        row.packBytes === undefined ? 'not measured' : bytesOf(row.packBytes),
        movedOf(world, row),
        whyOf(row),
      ]),
      empty: 'There is no repository.',
    })}
    ${moreOf(sorted.length, shown.length)}
  </section>`;
}

function verificationOf(row: RepositoryRow, nowMs: number): HtmlValue {
  if (row.verifiedMs === undefined) return 'never';
  const read = `, ${Math.round(100 * Math.min(1, Math.max(0, row.readShare)))} % of its packs read`;
  const found =
    row.damagedContents === 0
      ? ', nothing damaged'
      : html`,
          <strong class="tone-bad">${numberText(row.damagedContents)} damaged contents</strong>`;
  return [timeOf(row.verifiedMs, nowMs), read, found];
}

function movedOf({ volumes }: World, { namespace, location }: RepositoryRow): string {
  const moved = volumes?.moved.get(repositoryKey(namespace, location));
  if (!moved || moved.totalBytes === 0) return '';
  const share = Math.round((100 * moved.newBytes) / moved.totalBytes);
  return `${bytesOf(moved.totalBytes)}, ${bytesOf(moved.newBytes)} new (${share} %)`;
}

export function locationsSection({ locations, nowMs, trust }: World): Html {
  const shown = locations.slice(0, ROWS_MAX);
  return html`<section aria-labelledby="locations">
    <h2 id="locations">Locations</h2>
    ${tableOf({
      id: 'all-locations',
      caption: 'Where backups are stored',
      columns: ['Location', 'Provider', 'Bucket', 'Phase', 'Last validated', 'Signatures', 'Notes'],
      rows: shown.map((row) => [
        named(row.name),
        named(row.provider),
        named(row.bucket),
        phaseOf(row.phase),
        timeOf(row.validatedMs, nowMs, 'never'),
        signaturesOf(trust, row),
        [row.isDefault && 'default ', row.isReadOnly && 'read-only ', whyOf(row)],
      ]),
      empty: 'There is no location.',
    })}
    ${moreOf(locations.length, shown.length)}
  </section>`;
}

import { ageText } from '../../base/index.ts';
import { html, type HtmlValue, named } from './html.ts';
import { volumeLink } from './files/documents.ts';
import {
  barOf,
  bytesOf,
  documentOf,
  filesPath,
  leftOf,
  numberText,
  phaseOf,
  rateOf,
  tableOf,
  timeOf,
  backupPath,
} from './layout.ts';
import { pageOf } from './listing.ts';
import { bytesText, totalsOf } from './moving.ts';
import { footerOf, outagesOf, type PageOptions } from './overview.ts';
import type { Counts, RunRow } from './rows.ts';
import { pagesOf } from './tables.ts';
import type { PageVolume } from './volumes.ts';

/** A backup's own page: `/backups/NAME`. */
export function backupDocument(
  { world, volumesOf, hasFiles, logout }: PageOptions,
  backup: RunRow,
  page: number,
): string {
  const volumes = volumesOf(backup);
  const listing = pageOf(volumes, page);
  const totals = totalsOf(volumes);
  const facts = factsOf(backup, world.nowMs).filter(([, value]) => value !== '');
  const restores = world.restores.filter(({ of }) => of === backup.name).slice(0, 20);
  return documentOf({
    ...{ title: `Backup ${backup.name}`, isLive: true, footer: footerOf(world, logout) },
    header: html`<h1>Backup ${named(backup.name)}</h1>
      <nav aria-label="Pages of this server">
        <ul>
          <li><a href="/">All backups</a></li>
          ${hasFiles && html`<li><a href="${filesPath(backup.name)}">Files of its volumes</a></li>`}
        </ul>
      </nav>`,
    main: html`${outagesOf(world)}
      <dl>
        ${facts.map(
          ([name, value]) =>
            html`<dt>${name}</dt>
              <dd>${value}</dd>`,
        )}
      </dl>
      <section aria-labelledby="volumes">
        <h2 id="volumes">Volumes</h2>
        ${
          totals.count > 0 &&
          html`<p>
            ${numberText(totals.ended)} of ${numberText(totals.count)} ended,
            ${bytesOf(totals.bytesDone)} moved
            ${totals.bytesPerSecond > 0 && html`at ${rateOf(totals.bytesPerSecond)}`}
            ${totals.secondsLeft !== undefined && html`, ${leftOf(totals.secondsLeft)} left`}
            ${barOf(totals.bytesDone, totals.totalBytes, 'Bytes of all volumes')}
          </p>`
        }
        ${tableOf({
          id: 'its-volumes',
          caption: 'Volumes whose data was moved for this backup, oldest first',
          columns: [
            'Volume',
            'Operation',
            'Phase',
            'Node',
            'Done',
            '#Bytes',
            '#Rate',
            '#Left',
            'Waits for, or how it ended',
          ],
          rows: listing.rows.map((volume) => [
            hasFiles && hasFilesOf(volume)
              ? volumeLink(backup.name, volume.volume)
              : named(volume.volume),
            [volume.kind, ' ', named(volume.name)],
            phaseOf(volume.phase),
            named(volume.node),
            barOf(volume.bytesDone, volume.totalBytes, `Bytes of ${volume.volume}`),
            bytesText(volume),
            rateOf(volume.bytesPerSecond),
            leftOf(volume.secondsLeft),
            named(volume.waitsFor),
          ]),
          empty: world.volumes
            ? 'The cluster knows of no volume whose data was moved for this backup.'
            : 'Volumes have not been read yet.',
        })}
        ${pagesOf(listing, (at) => `${backupPath(backup.name)}?page=${at}`)}
      </section>
      <section aria-labelledby="restores">
        <h2 id="restores">Restores of it</h2>
        ${tableOf({
          id: 'its-restores',
          caption: 'Newest restores from this backup',
          columns: ['Restore', 'Phase', '#Errors', '#Warnings', 'Began', 'Ended'],
          rows: restores.map((row) => [
            named(row.name),
            phaseOf(row.phase),
            numberText(row.errors),
            numberText(row.warnings),
            timeOf(row.beganMs, world.nowMs),
            timeOf(row.endedMs, world.nowMs),
          ]),
          empty: 'It was not restored, as far as this cluster knows.',
        })}
      </section>
      <p class="dim">As of ${timeOf(world.nowMs, world.nowMs)}, in UTC.</p>`,
  });
}

/** Of a pod's volume the backup's own list has the claim. */
const hasFilesOf = ({ kind, phase }: PageVolume): boolean =>
  kind === 'DataUpload' && phase === 'Completed';

function factsOf(backup: RunRow, nowMs: number): (readonly [string, HtmlValue])[] {
  const { name, beganMs, endedMs, itemsDone, itemsTotal, errors, warnings } = backup;
  const items =
    itemsTotal === 0
      ? ''
      : [
          barOf(itemsDone, itemsTotal, 'Items'),
          ` ${numberText(itemsDone)} of ${numberText(itemsTotal)}`,
        ];
  const isDoubtful = errors + warnings > 0 || backup.phase.includes('Failed');
  return [
    ['Phase', [phaseOf(backup.phase), backup.isDeleting && ' (being deleted)']],
    ['Why', backup.why === '' ? '' : named(backup.why)],
    ['Errors', numberText(errors)],
    ['Warnings', numberText(warnings)],
    ['Look into it', isDoubtful ? html`<code>longshore backup describe ${name}</code>` : ''],
    ['Place in the queue', backup.queuePosition > 0 ? numberText(backup.queuePosition) : ''],
    ['Schedule', backup.schedule === '' ? '' : named(backup.schedule)],
    ['Location', named(backup.location)],
    ['Began', timeOf(beganMs, nowMs)],
    ['Ended', timeOf(endedMs, nowMs)],
    ['Took', endedMs === undefined ? '' : ageText((endedMs - beganMs) / 1000)],
    ['Expires', timeOf(backup.expiresMs, nowMs)],
    ['Items', items],
    ['Snapshots', countsText(backup.snapshots)],
    ['Operations', countsText(backup.operations)],
  ];
}

function countsText({ attempted, completed, failed }: Counts): string {
  if (attempted === 0) return '';
  const bad = failed > 0 ? `, ${numberText(failed)} failed` : '';
  return `${numberText(completed)} of ${numberText(attempted)} completed${bad}`;
}

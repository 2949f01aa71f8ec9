import { ageText } from '../../base/index.ts';
import { html, named } from './html.ts';
import {
  documentOf,
  type Facts,
  filesPath,
  numberText,
  phaseOf,
  restoreLink,
  tableOf,
  timeOf,
} from './layout.ts';
import { footerOf, outagesOf, type PageOptions } from './overview.ts';
import type { RunRow } from './rows.ts';
import { signatureOf } from './signatures.ts';
import type { World } from './view.ts';
import {
  countsText,
  factsList,
  itemsOf,
  itsVolumesSection,
  messagesSections,
} from './run-parts.ts';

/** The page of a backup: `/backups/NAME`. */
export function backupDocument(
  { world, volumesOf, messages, hasFiles, logout }: PageOptions,
  backup: RunRow,
  page: number,
): string {
  const volumes = volumesOf(backup);
  const restores = world.restores.filter(({ of }) => of === backup.name).slice(0, 20);
  return documentOf({
    title: `Backup ${backup.name}`,
    isLive: true,
    footer: footerOf(world, logout),
    header: html`<h1>Backup ${named(backup.name)}</h1>
      <nav aria-label="Pages of this server">
        <ul>
          <li><a href="/">All backups</a></li>
          ${hasFiles && html`<li><a href="${filesPath(backup.name)}">Files of its volumes</a></li>`}
        </ul>
      </nav>`,
    main: html`${outagesOf(world)} ${factsList(factsOf(backup, world))}
      ${messagesSections(messages)}
      ${itsVolumesSection({ world, run: backup, volumes, page, hasFiles })}
      <section aria-labelledby="restores">
        <h2 id="restores">Restores of it</h2>
        ${tableOf({
          id: 'its-restores',
          caption: 'Newest restores from this backup',
          columns: ['Restore', 'Phase', '#Errors', '#Warnings', 'Began', 'Ended'],
          rows: restores.map((row) => [
            restoreLink(row.name),
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

function factsOf(backup: RunRow, { nowMs, trust }: World): Facts {
  const { name, beganMs, endedMs, errors, warnings } = backup;
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
    ['Signature', signatureOf(trust, backup)],
    ['Began', timeOf(beganMs, nowMs)],
    ['Ended', timeOf(endedMs, nowMs)],
    ['Took', endedMs === undefined ? '' : ageText((endedMs - beganMs) / 1000)],
    ['Expires', timeOf(backup.expiresMs, nowMs)],
    ['Items', itemsOf(backup)],
    ['Snapshots', countsText(backup.snapshots)],
    ['Operations', countsText(backup.operations)],
  ];
}

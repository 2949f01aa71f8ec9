import { ageText } from '../../base/index.ts';
import { html, type HtmlValue, named } from './html.ts';
import { backupLink, documentOf, type Facts, numberText, phaseOf, timeOf } from './layout.ts';
import { footerOf, outagesOf, type PageOptions } from './overview.ts';
import type { RunRow } from './rows.ts';
import {
  countsText,
  factsList,
  itemsOf,
  itsVolumesSection,
  messagesSections,
} from './run-parts.ts';
import type { World } from './view.ts';

/** The page of a restore: `/restores/NAME`. */
export function restoreDocument(
  { world, volumesOf, messages, logout }: PageOptions,
  restore: RunRow,
  page: number,
): string {
  const volumes = volumesOf(restore);
  return documentOf({
    title: `Restore ${restore.name}`,
    isLive: true,
    footer: footerOf(world, logout),
    header: html`<h1>Restore ${named(restore.name)}</h1>
      <nav aria-label="Pages of this server">
        <ul>
          <li><a href="/">All backups</a></li>
          <li><a href="/#restores">Newest restores</a></li>
        </ul>
      </nav>`,
    main: html`${outagesOf(world)} ${factsList(factsOf(world, restore))}
      ${messagesSections(messages)}
      ${itsVolumesSection({ world, run: restore, volumes, page, hasFiles: false })}
      <p class="dim">As of ${timeOf(world.nowMs, world.nowMs)}, in UTC.</p>`,
  });
}

function factsOf(world: World, restore: RunRow): Facts {
  const { beganMs, endedMs, errors, warnings } = restore;
  const { nowMs } = world;
  return [
    ['Phase', [phaseOf(restore.phase), restore.isDeleting && ' (being deleted)']],
    ['Why', restore.why === '' ? '' : named(restore.why)],
    ['What to do', nextOf(restore)],
    ['Errors', numberText(errors)],
    ['Warnings', numberText(warnings)],
    ['Backup', backupOf(world, restore)],
    ['Schedule', restore.schedule === '' ? '' : named(restore.schedule)],
    ['Began', timeOf(beganMs, nowMs)],
    ['Ended', timeOf(endedMs, nowMs)],
    ['Took', endedMs === undefined ? '' : ageText((endedMs - beganMs) / 1000)],
    ['Items', itemsOf(restore)],
    ['Operations', countsText(restore.operations)],
  ];
}

function backupOf({ backupsByName }: World, { of }: RunRow): HtmlValue {
  if (of === '') return '';
  return backupsByName.has(of) ? backupLink(of) : [named(of), ', which this cluster does not have'];
}

function nextOf({ name, phase, isOver, errors, warnings }: RunRow): HtmlValue {
  const describe = html`<code>longshore restore describe ${name}</code>`;
  const again =
    'Once the reason is gone, restore again: what is there by then is left as it is unless the new restore says otherwise, so delete first what is not as it should be.';
  if (phase === 'FailedValidation') {
    return 'Nothing was restored. Correct what is named, and make a new restore.';
  }
  if (phase.includes('Failed') || errors > 0) {
    return isOver
      ? ['What is missing, and why: ', describe, `. ${again}`]
      : ['It goes on with the rest. What is missing so far: ', describe];
  }
  if (!isOver) return 'Nothing: it is under way.';
  return warnings > 0
    ? ['All was restored but what the warnings name, as what was there already: ', describe]
    : 'Nothing: all of it was restored.';
}

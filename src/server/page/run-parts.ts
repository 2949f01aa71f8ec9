import { hasEnded, type Tone } from '../../kube/index.ts';
import { type Html, html, type HtmlValue, named } from './html.ts';
import { volumeLink } from './files/documents.ts';
import {
  barOf,
  bytesOf,
  type Facts,
  leftOf,
  moreOf,
  numberText,
  phaseOf,
  rateOf,
  runPath,
  tableOf,
} from './layout.ts';
import { pageOf } from './listing.ts';
import { bytesText, totalsOf } from './volume-rows.ts';
import type { Counts, RunRow } from './rows.ts';
import { pagesOf } from './tables.ts';
import type { World } from './view.ts';
import type { PageVolume } from './volumes.ts';

export interface ItsVolumesOptions {
  readonly world: World;
  readonly run: RunRow;
  readonly volumes: readonly PageVolume[];
  readonly page: number;
  /** Whether names of volumes link to their files. */
  readonly hasFiles: boolean;
}

/** Limit for each kind on the page. */
export const MESSAGES_MAX = 50;

interface Messages {
  readonly count: number;
  readonly texts: readonly string[];
}

/** Errors and warnings that a run stored in the bucket. */
export interface RunMessages {
  readonly errors: Messages;
  readonly warnings: Messages;
}

/** Reads the errors and warnings of ended runs. */
export interface MessageSource {
  /** `location`: that of its backup. Resolves with a sentence on failure, and never rejects. */
  of(run: RunRow, location: string): Promise<RunMessages | string>;
}

/** Whether a run may have stored errors or warnings. */
export const hasMessages = ({ phase, errors, warnings }: RunRow): boolean =>
  hasEnded(phase) && (errors + warnings > 0 || phase !== 'Completed');

/** The errors and warnings of a run. `messages`: undefined if it has none. */
export function messagesSections(messages: RunMessages | string | undefined): HtmlValue {
  if (messages === undefined) return undefined;
  if (typeof messages === 'string') {
    return html`<p class="tone-doubtful">
      Its errors and warnings cannot be read from the bucket: ${named(messages)}
    </p>`;
  }
  const { errors, warnings } = messages;
  return [
    messagesSection({ id: 'errors', title: 'Errors', tone: 'bad' }, errors),
    messagesSection({ id: 'warnings', title: 'Warnings', tone: 'doubtful' }, warnings),
  ];
}

function messagesSection(
  { id, title, tone }: { readonly id: string; readonly title: string; readonly tone: Tone },
  { count, texts }: Messages,
): HtmlValue {
  if (count === 0) return undefined;
  return html`<section aria-labelledby="${id}">
    <h2 id="${id}">${title}</h2>
    <ul class="problems">
      ${texts.map((text) => html`<li class="tone-${tone}"><p>${named(text)}</p></li>`)}
    </ul>
    ${moreOf(count, texts.length)}
  </section>`;
}

/** Volumes of a backup or restore, for its page. */
export function itsVolumesSection(options: ItsVolumesOptions): Html {
  const { world, run, volumes, page, hasFiles } = options;
  const word = run.kind === 'Backup' ? 'backup' : 'restore';
  const listing = pageOf(volumes, page);
  const totals = totalsOf(volumes);
  return html`<section aria-labelledby="volumes">
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
      caption: `Volumes whose data was moved for this ${word}, oldest first`,
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
        hasFiles && hasFilesOf(volume) ? volumeLink(run.name, volume.volume) : named(volume.volume),
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
        ? `The cluster knows of no volume whose data was moved for this ${word}.`
        : 'Volumes have not been read yet.',
    })}
    ${pagesOf(listing, (at) => `${runPath(run)}?page=${at}`)}
  </section>`;
}

/** Pod volumes are listed here by pod, but their files are addressed by claim. */
const hasFilesOf = ({ kind, phase }: PageVolume): boolean =>
  kind === 'DataUpload' && phase === 'Completed';

/** Skips empty values. */
export const factsList = (facts: Facts): Html =>
  html`<dl>
    ${facts
      .filter(([, value]) => value !== '')
      .map(
        ([name, value]) =>
          html`<dt>${name}</dt>
            <dd>${value}</dd>`,
      )}
  </dl>`;

export function itemsOf({ itemsDone, itemsTotal }: RunRow): Facts[number][1] {
  if (itemsTotal === 0) return '';
  const text = ` ${numberText(itemsDone)} of ${numberText(itemsTotal)}`;
  return [barOf(itemsDone, itemsTotal, 'Items'), text];
}

export function countsText({ attempted, completed, failed }: Counts): string {
  if (attempted === 0) return '';
  const bad = failed > 0 ? `, ${numberText(failed)} failed` : '';
  return `${numberText(completed)} of ${numberText(attempted)} completed${bad}`;
}

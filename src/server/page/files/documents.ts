import { lookup } from '../../../base/index.ts';
import { type Html, html, type HtmlValue, named } from '../html.ts';
import {
  backupLink,
  bytesOf,
  documentOf,
  filesPath,
  numberText,
  tableOf,
  timeOf,
} from '../layout.ts';
import type { BrowsedVolume, FileEntry, FilePlace, OpenEntry } from './contract.ts';
import { FILE_ORDERS, type FileListing, type FileOrder, type FileQuery } from './listing.ts';

/** Common to all pages about files of a backup. */
export interface FilesPageOptions {
  readonly backup: string;
  readonly nowMs: number;
  readonly logout: Html | undefined;
}

/** The volumes of a backup: `/backups/NAME/files`. */
export function volumesDocument(
  options: FilesPageOptions,
  volumes: readonly BrowsedVolume[],
): string {
  const { backup } = options;
  return pageOf(options, {
    title: `Volumes of ${backup}`,
    heading: html`<h1>Volumes of ${named(backup)}</h1>`,
    crumbs: [],
    main: tableOf({
      id: 'volumes',
      caption: 'Volumes that this backup holds, as its own files say',
      columns: ['Volume', 'Backed up by', '#Size', 'Files'],
      rows: volumes.map(({ name, how, bytes, why }) => [
        why === undefined ? volumeLink(backup, name) : named(name),
        how,
        bytes === undefined ? '' : bytesOf(bytes),
        why === undefined ? 'can be browsed' : named(why),
      ]),
      empty: 'This backup has no volumes.',
    }),
  });
}

export const volumeLink = (backup: string, volume: string): Html =>
  html`<a href="${filesPath(backup, { volume, path: [] })}">${named(volume)}</a>`;

/** A place with the open entry. */
export interface FoundPlace extends FilePlace {
  readonly open: Pick<OpenEntry, 'entry' | 'notes' | 'deviceBytes' | 'isSorted'>;
}

/** The contents of a directory. */
export function directoryDocument(
  options: FilesPageOptions,
  place: FoundPlace,
  listing: FileListing,
  query: FileQuery,
): string {
  const { backup, nowMs } = options;
  const { rows, total, isInOrder } = listing;
  const { notes, deviceBytes, isSorted } = place.open;
  const kept = isSorted
    ? 'as they are stored, directories first, each kind by name'
    : 'as they are stored';
  const count = total === undefined ? 'many entries' : `${numberText(total)} entries`;
  return pageOf(options, {
    ...headingOf(place),
    crumbs: crumbsOf(backup, place),
    main: html`${notesOf(notes)}
      <p>
        <a href="${downloadPath(backup, place, true)}">Download as tar</a>
        <span class="dim">with everything below; devices, pipes and sockets are left out</span>
      </p>
      ${
        deviceBytes !== undefined &&
        html`<p>
          <a href="${downloadPath(backup, place, false)}">Download the device</a>
          <span class="dim">as it is, ${bytesOf(deviceBytes)}</span>
        </p>`
      }
      ${
        !isInOrder &&
        html`<p class="note tone-doubtful">
          There are too many entries to sort them: they are listed ${kept}.
        </p>`
      }
      ${orderLinks(backup, place, query)}
      ${tableOf({
        id: 'files',
        caption: `${count}; page ${listing.page}. Times are UTC.`,
        columns: ['Name', 'Kind', 'Mode', '#Size', 'Changed', '#Owner'],
        rows: rows.map((entry) => [
          entryLink(backup, place, entry),
          kindOf(entry),
          html`<code>${modeText(entry)}</code>`,
          bytesOf(entry.sizeBytes),
          timeOf(msOf(entry), nowMs),
          `${entry.uid}:${entry.gid}`,
        ]),
        empty: 'This directory is empty.',
      })}
      ${pagesOf(backup, place, listing, query)}`,
  });
}

/** The page of any entry except a directory. `target`: of a symbolic link. */
export function fileDocument(
  options: FilesPageOptions,
  place: FoundPlace,
  target: string | undefined,
): string {
  const { backup, nowMs } = options;
  const { entry, notes } = place.open;
  const facts: readonly (readonly [string, HtmlValue])[] = [
    ['Kind', kindOf(entry)],
    ...(target === undefined ? [] : [['Leads to', named(target)] as const]),
    ['Size', `${bytesOf(entry.sizeBytes)} (${numberText(entry.sizeBytes)} bytes)`],
    ['Changed', timeOf(msOf(entry), nowMs)],
    ['Mode', html`<code>${modeText(entry)}</code>`],
    ['Owner', `${entry.uid}:${entry.gid}`],
  ];
  const isStored = ['f', 's'].includes(entry.type);
  return pageOf(options, {
    ...headingOf(place),
    crumbs: crumbsOf(backup, place),
    main: html`${notesOf(notes)}
      <dl>
        ${facts.map(
          ([name, value]) =>
            html`<dt>${name}</dt>
              <dd>${value}</dd>`,
        )}
      </dl>
      <ul>
        ${
          entry.type === 'f' &&
          html`<li><a href="${downloadPath(backup, place, false)}">Download</a></li>`
        }
        ${
          isStored &&
          html`<li>
            <a href="${downloadPath(backup, place, true)}">Download as tar</a>, with owner, mode and
            time
          </li>`
        }
      </ul>
      ${!isStored && html`<p>Nothing is stored of it that could be downloaded.</p>`}`,
  });
}

const notesOf = (notes: readonly string[]): Html[] =>
  notes.map((note) => html`<p class="note tone-doubtful">Of the device: ${named(note)}.</p>`);

function pageOf(
  { backup, logout }: FilesPageOptions,
  parts: {
    readonly title: string;
    readonly heading: Html;
    readonly crumbs: readonly HtmlValue[];
    readonly main: HtmlValue;
  },
): string {
  const volumes = html`<a href="${filesPath(backup)}">Volumes</a>`;
  const all = [html`Backup ${backupLink(backup)}`, volumes, ...parts.crumbs];
  return documentOf({
    title: parts.title,
    isLive: false,
    header: html`${parts.heading}
      <nav aria-label="Where this is">
        <ul>
          ${all.map((crumb) => html`<li>${crumb}</li>`)}
        </ul>
      </nav>`,
    main: html`${parts.main}`,
    footer: html`${logout} What is shown here was read from the backup, and changes nothing.`,
  });
}

function headingOf({ volume, path }: FilePlace): { title: string; heading: Html } {
  const name = path.at(-1) ?? volume;
  return { title: name, heading: html`<h1>${named(name)}</h1>` };
}

/** Links to the volume and each parent directory. */
function crumbsOf(backup: string, { volume, path }: FilePlace): Html[] {
  return [
    volumeLink(backup, volume),
    ...path.map((name, at) => {
      if (at === path.length - 1) return html`${named(name)}`;
      const above = { volume, path: path.slice(0, at + 1) };
      return html`<a href="${filesPath(backup, above)}">${named(name)}</a>`;
    }),
  ];
}

/** No link to an empty name, or a name with a slash, which cannot be in an address. */
function entryLink(backup: string, { volume, path }: FilePlace, entry: FileEntry): Html {
  const { name, type, objectId } = entry;
  const isAddressable = name !== '' && !/[/\0]/.test(name) && name.isWellFormed();
  if (!isAddressable) return named(name);
  const isReplaced = name.includes('\ufffd');
  const place = { volume, path: [...path, name], ...(isReplaced && { objectId }) };
  if (type === 'f') {
    return html`<a href="${filesPath(backup, place)}">${named(name)}</a> (<a
        href="${downloadPath(backup, place, false)}"
        aria-label="Download ${name}"
        >download</a
      >)`;
  }
  const end = type === 'd' ? '/' : '';
  return html`<a href="${filesPath(backup, place)}">${named(name)}${end}</a>`;
}

const downloadPath = (backup: string, place: FilePlace, isTar: boolean): string =>
  filesPath(backup, place, { verb: 'download', more: isTar ? { as: 'tar' } : {} });

const ORDERS: Readonly<Record<FileOrder, string>> = {
  name: 'Name',
  size: 'Size',
  time: 'Time',
};

function listingPath(backup: string, place: FilePlace, change: FileQuery): string {
  const { order, isDescending, page } = change;
  return filesPath(backup, place, {
    more: {
      ...(order !== 'name' && { order }),
      ...(isDescending && { down: '1' }),
      ...(page > 1 && { page: String(page) }),
    },
  });
}

function orderLinks(backup: string, place: FilePlace, query: FileQuery): Html {
  const links = FILE_ORDERS.flatMap((order) =>
    [false, true].map((isDescending) => {
      const text = `${ORDERS[order]} ${isDescending ? '↓' : '↑'}`;
      if (order === query.order && isDescending === query.isDescending) {
        return html`<strong aria-current="true">${text}</strong>`;
      }
      const path = listingPath(backup, place, { order, isDescending, page: 1 });
      return html`<a href="${path}">${text}</a>`;
    }),
  );
  return html`<nav class="pages" aria-label="Order">${links}</nav>`;
}

function pagesOf(
  backup: string,
  place: FilePlace,
  { page, hasMore }: FileListing,
  query: FileQuery,
): HtmlValue {
  if (page === 1 && !hasMore) return undefined;
  const pathOf = (wanted: number): string => listingPath(backup, place, { ...query, page: wanted });
  return html`<nav class="pages" aria-label="Pages">
    ${page > 1 && html`<a href="${pathOf(page - 1)}" rel="prev">Previous</a>`}
    <span>Page ${page}</span>
    ${hasMore && html`<a href="${pathOf(page + 1)}" rel="next">Next</a>`}
  </nav>`;
}

const KINDS: Readonly<Record<string, string>> = {
  d: 'directory',
  f: 'file',
  s: 'symbolic link',
};
const kindOf = ({ type }: FileEntry): string => lookup(KINDS, type) ?? 'neither file nor directory';

/** Limit of a valid date. Later and earlier times show the nearest date. */
const MS_MAX = 253_402_300_799_999;
const msOf = ({ mtimeNs }: FileEntry): number =>
  Math.max(-MS_MAX, Math.min(MS_MAX, Number(mtimeNs / 1_000_000n)));

function modeText({ mode }: FileEntry): string {
  const special = [mode & 0o4000, mode & 0o2000, mode & 0o1000];
  return Array.from('rwxrwxrwx', (letter, at) => {
    const isSet = (mode & (0o400 >> at)) !== 0;
    if (letter !== 'x' || special[(at - 2) / 3] === 0) return isSet ? letter : '-';
    const sign = at === 8 ? 't' : 's';
    return isSet ? sign : sign.toUpperCase();
  }).join('');
}

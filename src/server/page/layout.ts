import { ageText, formatBytes } from '../../base/index.ts';
import { type Tone, toneOf } from '../../kube/index.ts';
import { fixedHtml, type Html, html, type HtmlValue, named } from './html.ts';
import type { FilePlace } from './files/contract.ts';
import type { RunRow } from './rows.ts';
import { SCRIPT, STYLE } from './style.ts';

const STYLE_ELEMENT = fixedHtml(`<style>${STYLE}</style>`);
const SCRIPT_ELEMENT = fixedHtml(`<script>${SCRIPT}</script>`);

export interface DocumentOptions {
  readonly title: string;
  readonly header: Html;
  readonly main: Html;
  readonly footer?: Html | undefined;
  /** Whether the page refreshes itself. */
  readonly isLive: boolean;
}

export function documentOf({ title, header, main, footer, isLive }: DocumentOptions): string {
  const page = html`<html lang="en">
    <head>
      <meta charset="utf-8" />
      <meta name="viewport" content="width=device-width, initial-scale=1" />
      <title>${title}</title>
      <link rel="icon" href="data:," />
      ${STYLE_ELEMENT}
    </head>
    <body>
      <a class="skip" href="#main">Skip to the content</a>
      <header>${header}</header>
      <main id="main" tabindex="-1">${main}</main>
      <footer>${footer} <span id="refresh" role="status"></span></footer>
      ${isLive && SCRIPT_ELEMENT}
    </body>
  </html>`;
  return `<!doctype html>\n${page.toString()}`;
}

/** A page with a single message. */
export const plainDocument = (title: string, text: HtmlValue): string =>
  documentOf({
    title,
    isLive: false,
    header: html`<h1>${title}</h1>`,
    main: html`<p>${text}</p>`,
  });

/** Names and values. */
export type Facts = readonly (readonly [string, HtmlValue])[];

export interface TableOptions {
  readonly id: string;
  readonly caption: HtmlValue;
  /** Titles of columns. Titles of number columns begin with `#`. */
  readonly columns: readonly string[];
  /** Cells. The first cell of a row is its heading. */
  readonly rows: readonly (readonly HtmlValue[])[];
  /** Text for a table without rows. */
  readonly empty?: string;
}

/** A table that scrolls by itself on a narrow screen. */
export function tableOf({ id, caption, columns, rows, empty }: TableOptions): Html {
  if (rows.length === 0 && empty !== undefined) return html`<p class="dim">${empty}</p>`;
  const isNumber = columns.map((column) => column.startsWith('#'));
  const heads = columns.map((column, at) =>
    isNumber[at]
      ? html`<th scope="col" class="number">${column.slice(1)}</th>`
      : html`<th scope="col">${column}</th>`,
  );
  const lines = rows.map(([first, ...others]) => {
    const cells = others.map((cell, at) =>
      isNumber[at + 1] ? html`<td class="number">${cell}</td>` : html`<td>${cell}</td>`,
    );
    return html`<tr>
      <th scope="row">${first}</th>
      ${cells}
    </tr>`;
  });
  return html`<div
    class="wide"
    id="${id}"
    role="region"
    aria-labelledby="${id}-caption"
    tabindex="0"
  >
    <table>
      <caption id="${id}-caption">
        ${caption}
      </caption>
      <thead>
        <tr>
          ${heads}
        </tr>
      </thead>
      <tbody>
        ${lines}
      </tbody>
    </table>
  </div>`;
}

/** A note if some rows are not shown. */
export const moreOf = (total: number, shown: number): Html | undefined =>
  total > shown ? html`<p class="dim">and ${numberText(total - shown)} more</p>` : undefined;

export const numberText = (value: number): string =>
  String(value).replaceAll(/\B(?=(\d{3})+$)/g, ',');

const NO_BREAK = '\u00a0';

/** Time to the minute in UTC, with its age. */
export function timeOf(ms: number | undefined, nowMs: number, none = ''): Html | string {
  if (ms === undefined) return none;
  const text = new Date(ms).toISOString();
  const seconds = (nowMs - ms) / 1000;
  const age = seconds >= 0 ? `${ageText(seconds)} ago` : `in ${ageText(-seconds)}`;
  return html`<time datetime="${text}">${text.slice(0, 16).replace('T', ' ')}</time>
    (${age.replaceAll(' ', NO_BREAK)})`;
}

const SIGNS: Readonly<Record<Tone, string>> = { good: '✓', doubtful: '!', bad: '✗', plain: '…' };

/** A phase with a sign, so that the colour is not the only mark. */
export function phaseOf(phase: string): Html {
  const tone = toneOf(phase);
  return html`<span class="tone-${tone}"
    ><span aria-hidden="true">${SIGNS[tone]}</span> ${phase}</span
  >`;
}

export const signOf = (tone: Tone): string => SIGNS[tone];

/** A progress bar. */
export function barOf(done: number, total: number, label: string): Html | string {
  if (total <= 0) return '';
  const percent = Math.min(100, Math.floor((100 * done) / total));
  return html`<progress max="100" value="${percent}" aria-label="${label}">${percent} %</progress>
    ${percent} %`;
}

export const bytesOf = (bytes: number): string => formatBytes(Math.round(bytes));
export const rateOf = (bytesPerSecond: number | undefined): string =>
  bytesPerSecond === undefined ? '' : `${bytesOf(bytesPerSecond)}/s`;
export const leftOf = (seconds: number | undefined): string =>
  seconds === undefined ? '' : ageText(seconds);

export const backupPath = (name: string): string =>
  `/backups/${encodeURIComponent(name.toWellFormed())}`;
export const restorePath = (name: string): string =>
  `/restores/${encodeURIComponent(name.toWellFormed())}`;
export const runPath = ({ kind, name }: Pick<RunRow, 'kind' | 'name'>): string =>
  kind === 'Backup' ? backupPath(name) : restorePath(name);

export const backupLink = (name: string): Html =>
  html`<a href="${backupPath(name)}">${named(name)}</a>`;
export const restoreLink = (name: string): Html =>
  html`<a href="${restorePath(name)}">${named(name)}</a>`;

/** The address of a volume's files. In the query, because browsers change paths with dots. */
export function filesPath(
  backup: string,
  place?: FilePlace,
  { verb = 'files', more = {} }: FilesPathOptions = {},
): string {
  const parameters = new URLSearchParams({
    ...(place && { volume: place.volume, path: `/${place.path.join('/')}` }),
    ...(place?.objectId !== undefined && { object: place.objectId }),
    ...more,
  }).toString();
  return `${backupPath(backup)}/${verb}${parameters === '' ? '' : `?${parameters}`}`;
}

export interface FilesPathOptions {
  readonly verb?: 'files' | 'download';
  /** More parameters of the query. */
  readonly more?: Readonly<Record<string, string>>;
}

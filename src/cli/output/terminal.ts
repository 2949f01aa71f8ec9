import { type Logger, printable } from '../../base/index.ts';
import { printText, writeOutput } from './streams.ts';
import { type Column, fittingTable, loadWidths, wideTable } from './table.ts';

export { printable };

const LEVELS = ['debug', 'info', 'warn', 'error'] as const;
type Level = (typeof LEVELS)[number];

let liveLine = '';

/** A logger for people, with lines such as `warning: message key=value`. */
export function createTerminalLogger(minimum: string): Logger {
  const threshold = Math.max(0, LEVELS.indexOf(minimum as Level));
  const write =
    (level: Level) =>
    (fields: object, message: string): void => {
      if (LEVELS.indexOf(level) < threshold) return;
      const rest = Object.entries(fields).map(
        ([key, value]) => ` ${key}=${printable(String(value))}`,
      );
      const name = level === 'warn' ? 'warning' : level;
      eraseLive();
      process.stderr.write(`${name}: ${message}${rest.join('')}\n`);
      redrawLive();
    };
  return { debug: write('debug'), info: write('info'), warn: write('warn'), error: write('error') };
}

function eraseLive(): void {
  if (liveLine !== '') process.stderr.write('\r\u001b[K');
}

function redrawLive(): void {
  if (liveLine !== '') process.stderr.write(liveLine);
}

export interface LiveLine {
  stop(): void;
}

/** A line redrawn four times a second, on a terminal only. `render` gets the columns. */
export function startLiveLine(render: (columns: number) => string): LiveLine {
  if (!process.stderr.isTTY || form.isQuiet) return { stop: () => undefined };
  const draw = (): void => {
    eraseLive();
    const width = process.stderr.columns || 80;
    liveLine = printable(render(width)).slice(0, width - 1);
    redrawLive();
  };
  const timer = setInterval(draw, 250);
  timer.unref();
  return {
    stop: () => {
      clearInterval(timer);
      eraseLive();
      liveLine = '';
    },
  };
}

export function formatDuration(seconds: number): string {
  if (seconds < 60) return `${Math.ceil(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export type DocumentFormat = 'json' | 'yaml';

/** Output settings from the flags of the running command. */
const form: { toYaml: ((value: unknown) => string) | undefined; isQuiet: boolean } = {
  toYaml: undefined,
  isQuiet: false,
};

/** Sets the format of all documents printed later. */
export async function setDocumentFormat(format: DocumentFormat): Promise<void> {
  // Loaded late: as large as all of our code.
  form.toYaml = format === 'yaml' ? (await import('./yaml.ts')).stringify : undefined;
}

/** With `--quiet` only IDs, tables, documents and errors are printed. */
export function setQuiet(isQuiet: boolean): void {
  form.isQuiet = isQuiet;
}

/** Prints the single document of `--json` or `-o`. Bigints become integers. */
export function printJson(value: unknown): void {
  const json = jsonText(value);
  printText(form.toYaml ? form.toYaml(JSON.parse(json)) : `${json}\n`);
}

const jsonText = (value: unknown): string =>
  JSON.stringify(
    value,
    (_key, field: unknown) => (typeof field === 'bigint' ? Number(field) : field),
    2,
  );

/** Prints a list that may be too long for one string, element by element. */
export class JsonList {
  #count = 0;

  async add(value: unknown): Promise<void> {
    const json = jsonText(value);
    const isFirst = this.#count++ === 0;
    if (form.toYaml) await writeOutput(form.toYaml([JSON.parse(json)]));
    else await writeOutput(`${isFirst ? '[' : ','}\n${json}`);
  }

  async end(): Promise<void> {
    if (this.#count === 0) await writeOutput('[]\n');
    else if (!form.toYaml) await writeOutput('\n]\n');
  }
}

/**
 * Prints a line for people, unless they want quiet. Escapes control characters, because other
 * clients wrote the sources, owners and targets.
 */
export function printLine(text: string): void {
  if (!form.isQuiet) printFact(text);
}

/** Prints a line that the user asked for, also with `--quiet`. */
export function printFact(text: string): void {
  printText(`${printable(text)}\n`);
}

/** Prints an ID for scripts, only with `--quiet`. */
export function printId(id: string): void {
  if (form.isQuiet) printFact(id);
}

/** Width of the terminal; undefined if output goes to a file or pipe. */
export const terminalWidth = (): number | undefined =>
  process.stdout.isTTY ? process.stdout.columns || 80 : undefined;

const LAST_COLUMN_MIN = 16;

/** Prints a table that fits the terminal. In full without a terminal, or with `isWide`. */
export async function printTable(
  columns: readonly (Column | string)[],
  rows: readonly (readonly string[])[],
  { isWide = false } = {},
): Promise<void> {
  await loadWidths(rows);
  const all = columns.map((column, i) => {
    if (typeof column !== 'string') return column;
    return { title: column, ...(i === columns.length - 1 && { min: LAST_COLUMN_MIN }) };
  });
  const width = isWide ? undefined : terminalWidth();
  const lines = width === undefined ? wideTable(all, rows) : fittingTable(all, rows, width);
  for (const line of lines) printText(`${line}\n`);
}

export const tableLines = (
  header: readonly string[],
  rows: readonly (readonly string[])[],
): string[] =>
  wideTable(
    header.map((title) => ({ title })),
    rows,
  );

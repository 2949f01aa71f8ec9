import { type Logger, printable } from '../base/index.ts';
import { printText, writeOutput } from './output.ts';

export { printable };

const LEVELS = ['debug', 'info', 'warn', 'error'] as const;
type Level = (typeof LEVELS)[number];

let liveLine = '';

/** One line for people: `warning: message key=value`. */
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

/** A line that is drawn anew four times a second, on a terminal only. It is given the terminal's columns. */
export function startLiveLine(render: (columns: number) => string): LiveLine {
  if (!process.stderr.isTTY) return { stop: () => undefined };
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

/** The one document of `--json`; bigints as integers. */
export function printJson(value: unknown): void {
  printText(`${jsonText(value)}\n`);
}

const jsonText = (value: unknown): string =>
  JSON.stringify(
    value,
    (_key, field: unknown) => (typeof field === 'bigint' ? Number(field) : field),
    2,
  );

/** The same for a list that may be too long for one string: elements are written as they come. */
export class JsonList {
  #count = 0;

  async add(value: unknown): Promise<void> {
    await writeOutput(`${this.#count++ === 0 ? '[' : ','}\n${jsonText(value)}`);
  }

  async end(): Promise<void> {
    await writeOutput(this.#count === 0 ? '[]\n' : '\n]\n');
  }
}

/** Sources, owners and targets are what other clients wrote: nothing of them reaches a terminal as it is. */
export function printLine(text: string): void {
  printText(`${printable(text)}\n`);
}

/** Columns aligned by their longest cell. */
export function printTable(header: readonly string[], rows: readonly string[][]): void {
  for (const line of tableLines(header, rows)) printText(`${line}\n`);
}

export function tableLines(header: readonly string[], rows: readonly string[][]): string[] {
  const all: (readonly string[])[] = [header, ...rows.map((row) => row.map(printable))];
  // By hand: a call takes some 100,000 parameters.
  const widths = header.map((_, i) =>
    all.reduce((width, row) => Math.max(width, (row[i] ?? '').length), 0),
  );
  return all.map((row) =>
    row
      .map((cell, i) => cell.padEnd(widths[i] ?? 0))
      .join('  ')
      .trimEnd(),
  );
}

import {
  type Clock,
  LOG_LEVELS,
  type Logger,
  type LogLevel,
  rfc3339Seconds,
  systemClock,
  textLogLine,
} from '../../base/index.ts';
import type { JournalEntry } from './segment.ts';

/** Receives the lines, warnings and errors of a run; in production its journal. */
export interface LogSink {
  addLine(line: string): void;
  addEntry(entry: JournalEntry): void;
}

export interface RunLinesOptions {
  readonly sink: Pick<LogSink, 'addLine'>;
  /** Fields of every line: `backup` or `restore` with `namespace/name`. */
  readonly subject: Readonly<Record<string, string>>;
  readonly level: string;
  readonly format: string;
  readonly clock?: Clock;
}

/** Logger that writes lines as Velero's CLI shows them. Counts no warnings. */
export function runLines({
  sink,
  subject,
  level,
  format,
  clock = systemClock,
}: RunLinesOptions): Logger {
  const name = (level === 'warning' ? 'warn' : level) as LogLevel;
  const least = Math.max(0, LOG_LEVELS.indexOf(name));
  const write =
    (at: LogLevel) =>
    (fields: object, message: string): void => {
      if (LOG_LEVELS.indexOf(at) < least) return;
      const time = rfc3339Seconds(clock.nowNs());
      const all = Object.entries({ ...fields, ...subject }).sort(([a], [b]) => (a < b ? -1 : 1));
      const line = { time, level: at, message, fields: Object.fromEntries(all) };
      sink.addLine(format === 'json' ? jsonLine(line) : textLogLine(line));
    };
  return {
    debug: write('debug'),
    info: write('info'),
    warn: write('warn'),
    error: write('error'),
  };
}

const jsonLine = ({ time, level, message, fields }: Parameters<typeof textLogLine>[0]): string =>
  `${JSON.stringify({ ...fields, level: level === 'warn' ? 'warning' : level, msg: message, time })}\n`;

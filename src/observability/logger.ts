import { pino } from 'pino';
import { type Logger, rfc3339Seconds, systemClock } from '../base/index.ts';

/** Structured logs on stderr, one JSON object a line. */
export function createJsonLogger(level: string): Logger {
  return pino({ level, base: null, timestamp: pino.stdTimeFunctions.isoTime }, destination(2));
}

/** A log that cannot be written, as on a full disk, is no reason to end a backup. */
function destination(descriptor: 1 | 2): ReturnType<typeof pino.destination> {
  const stream = pino.destination(descriptor);
  stream.on('error', () => undefined);
  return stream;
}

const LEVELS = ['debug', 'info', 'warn', 'error'] as const;
type Level = (typeof LEVELS)[number];

/**
 * The log of a long-running process on stdout: JSON, or text as Velero's node-agent writes it
 * (`time="..." level=info msg="..." key=value`).
 */
export function createServerLogger(level: string, format: string): Logger {
  const name = level === 'warning' ? 'warn' : level;
  if (format === 'json') {
    const formatters = { level: (label: string): object => ({ level: label }) };
    const timestamp = (): string => `,"time":"${new Date().toISOString()}"`;
    return pino({ level: name, base: null, timestamp, formatters }, destination(1));
  }
  const least = Math.max(0, LEVELS.indexOf(name as Level));
  const write =
    (at: Level) =>
    (fields: object, message: string): void => {
      if (LEVELS.indexOf(at) < least) return;
      const time = rfc3339Seconds(systemClock.nowNs());
      const shown = at === 'warn' ? 'warning' : at;
      const rest = Object.entries(fields).map(([key, value]) => ` ${key}=${quoted(value)}`);
      process.stdout.write(
        `time="${time}" level=${shown} msg=${quoted(message)}${rest.join('')}\n`,
      );
    };
  return { debug: write('debug'), info: write('info'), warn: write('warn'), error: write('error') };
}

/** As logfmt has it: quoted where it must be. */
function quoted(value: unknown): string {
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  return /^[\w./:@+-]+$/.test(text) ? text : JSON.stringify(text);
}

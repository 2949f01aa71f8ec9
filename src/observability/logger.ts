import { pino } from 'pino';
import {
  LOG_LEVELS,
  type Logger,
  type LogLevel,
  rfc3339Seconds,
  systemClock,
  textLogLine,
} from '../base/index.ts';

/** Structured logs on stderr, one JSON object per line. */
export function createJsonLogger(level: string): Logger {
  return pino({ level, base: null, timestamp: pino.stdTimeFunctions.isoTime }, destination(2));
}

/** A log that cannot be written, for example on a full disk, must not end a backup. */
function destination(descriptor: 1 | 2): ReturnType<typeof pino.destination> {
  const stream = pino.destination(descriptor);
  stream.on('error', () => undefined);
  return stream;
}

/**
 * The log of a long-running process on stdout: JSON, or text in the format of Velero's node-agent
 * (`time="..." level=info msg="..." key=value`).
 */
export function createServerLogger(level: string, format: string): Logger {
  const name = level === 'warning' ? 'warn' : level;
  if (format === 'json') {
    const formatters = { level: (label: string): object => ({ level: label }) };
    const timestamp = (): string => `,"time":"${new Date().toISOString()}"`;
    return pino({ level: name, base: null, timestamp, formatters }, destination(1));
  }
  const least = Math.max(0, LOG_LEVELS.indexOf(name as LogLevel));
  const write =
    (level: LogLevel) =>
    (fields: object, message: string): void => {
      if (LOG_LEVELS.indexOf(level) < least) return;
      const time = rfc3339Seconds(systemClock.nowNs());
      process.stdout.write(textLogLine({ time, level, message, fields }));
    };
  return { debug: write('debug'), info: write('info'), warn: write('warn'), error: write('error') };
}

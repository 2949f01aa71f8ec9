/** The logfmt form of a value, quoted if necessary. */
const quoted = (value: unknown): string => {
  const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? '');
  return /^[\w./:@+-]+$/.test(text) ? text : JSON.stringify(text);
};

export type LogLevel = 'debug' | 'info' | 'warn' | 'error';

export const LOG_LEVELS: readonly LogLevel[] = ['debug', 'info', 'warn', 'error'];

export interface LogLine {
  /** RFC 3339. */
  readonly time: string;
  readonly level: LogLevel;
  readonly message: string;
  readonly fields: object;
}

/** A log line in Velero's form: `time="..." level=info msg="..." key=value`. */
export function textLogLine({ time, level, message, fields }: LogLine): string {
  const shown = level === 'warn' ? 'warning' : level;
  const rest = Object.entries(fields).flatMap(([key, value]) =>
    value === undefined ? [] : [` ${key}=${quoted(value)}`],
  );
  return `time="${time}" level=${shown} msg=${quoted(message)}${rest.join('')}\n`;
}

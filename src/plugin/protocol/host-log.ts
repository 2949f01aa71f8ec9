import type { Logger } from '../../base/index.ts';

/**
 * The log of a plugin: one JSON object per line on stderr, with the keys that Velero's server
 * parses (go-hclog's, as in Velero's own plugins). During a backup the lines go into the backup's
 * log, and a line of level `error` counts as an error of the backup.
 */
const LEVELS = ['debug', 'info', 'warn', 'error'] as const;
type Level = (typeof LEVELS)[number];

/** go-plugin splits a line after 64 KiB. */
const LINE_CHARACTERS_MAX = 48 << 10;
const VALUE_CHARACTERS_MAX = 8 << 10;

export function createHostLogger(level: string, write: (line: string) => void): Logger {
  const least = leastOf(level);
  const log =
    (at: Level) =>
    (fields: object, message: string): void => {
      if (LEVELS.indexOf(at) >= least) write(lineOf(at, fields, message));
    };
  return { debug: log('debug'), info: log('info'), warn: log('warn'), error: log('error') };
}

/** Levels have logrus' names. An unknown name means info, its default. */
function leastOf(level: string): number {
  const name = level.toLowerCase();
  if (name === 'trace') return 0;
  if (name === 'warning') return LEVELS.indexOf('warn');
  if (name === 'fatal' || name === 'panic') return LEVELS.indexOf('error');
  const at = LEVELS.indexOf(name as Level);
  return at === -1 ? LEVELS.indexOf('info') : at;
}

/** The server drops `level`, `time` and `timestamp`, and sets its own. */
function lineOf(level: Level, fields: object, message: string): string {
  const shown = Object.entries(fields).map(([key, value]) => [key, textOf(value)]);
  const line = JSON.stringify({
    ...Object.fromEntries(shown),
    '@level': level,
    '@message': message,
    level: level === 'warn' ? 'warning' : level,
  });
  if (line.length <= LINE_CHARACTERS_MAX) return `${line}\n`;
  return `${JSON.stringify({ '@level': level, '@message': message.slice(0, VALUE_CHARACTERS_MAX) })}\n`;
}

function textOf(value: unknown): unknown {
  if (typeof value === 'number' || typeof value === 'boolean') return value;
  const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? '');
  return text.length > VALUE_CHARACTERS_MAX ? `${text.slice(0, VALUE_CHARACTERS_MAX)}…` : text;
}

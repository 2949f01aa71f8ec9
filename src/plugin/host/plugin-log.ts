import { basename } from 'node:path';
import type { Readable } from 'node:stream';
import { lookup } from '../../base/index.ts';
import type { Logger } from '../../base/index.ts';

type Level = 'debug' | 'info' | 'warn' | 'error';

/** go-plugin v1.7.0, client.go: stdErrBufferSize. A longer line is split. */
const LINE_BYTES_MAX = 64 << 10;
const NEWLINE = 0x0a;

/** Names of go-hclog, which does not know `warning`. */
const LEVELS: Readonly<Record<string, Level>> = {
  trace: 'debug',
  debug: 'debug',
  info: 'info',
  warn: 'warn',
  error: 'error',
};
const PREFIXES: readonly (readonly [string, Level])[] = [
  ['[TRACE]', 'debug'],
  ['[DEBUG]', 'debug'],
  ['[INFO]', 'info'],
  ['[WARN]', 'warn'],
  ['[ERROR]', 'error'],
];
/** The host sets these itself (Velero v1.18.3: pkg/plugin/clientmgmt/process/logrus_adapter.go). */
const DROPPED = [
  '@message',
  '@level',
  '@timestamp',
  '@logSourceSetBy',
  'level',
  'time',
  'timestamp',
];
/** Go's runtime prints this before it ends a program. All later lines belong to it. */
const CRASH = /^(panic: |fatal error: )/;

/**
 * Parses the log of one plugin process. JSON lines of go-hclog keep level, message and fields.
 * Other lines are logged unchanged, at the level that they name or else at debug. A line over 64
 * KiB is logged in parts. Ends with the stream.
 */
export async function readPluginLog(
  stream: Readable,
  { command, logger, onLine }: PluginLogOptions,
): Promise<void> {
  const from = { cmd: command, pluginName: basename(command) };
  let isCrash = false;
  for await (const { text, isWhole } of linesIn(stream)) {
    if (text.trim() === '') continue;
    onLine?.(text);
    const line = isWhole ? parsed(text) : undefined;
    if (line) {
      logger()[line.level]({ ...line.fields, ...from }, line.message);
      continue;
    }
    isCrash ||= CRASH.test(text);
    const level = isCrash ? 'error' : (PREFIXES.find(([p]) => text.startsWith(p))?.[1] ?? 'debug');
    logger()[level](from, text);
  }
}

export interface PluginLogOptions {
  readonly command: string;
  /** Called for each line: a process may outlive its first backup. */
  readonly logger: () => Logger;
  readonly onLine?: (text: string) => void;
}

interface LogLine {
  readonly level: Level;
  readonly message: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

function parsed(text: string): LogLine | undefined {
  if (!text.startsWith('{')) return undefined;
  let line: unknown;
  try {
    line = JSON.parse(text);
  } catch {
    return undefined;
  }
  const fields = line as Record<string, unknown>;
  const { '@message': message, '@level': named } = fields;
  const level = typeof named === 'string' ? lookup(LEVELS, named) : undefined;
  if (typeof message !== 'string' || !level) return undefined;
  const kept = Object.entries(fields).filter(([key]) => !DROPPED.includes(key));
  return { level, message, fields: Object.fromEntries(kept) };
}

async function* linesIn(stream: Readable): AsyncGenerator<{ text: string; isWhole: boolean }> {
  let parts: Buffer[] = [];
  let have = 0;
  let isWhole = true;
  const line = (): { text: string; isWhole: boolean } => {
    const text = Buffer.concat(parts).toString('utf8');
    parts = [];
    have = 0;
    return { text, isWhole };
  };
  const add = (part: Buffer): void => {
    parts.push(part);
    have += part.length;
  };
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    let rest = chunk;
    for (;;) {
      const end = rest.indexOf(NEWLINE);
      const part = end === -1 ? rest : rest.subarray(0, end);
      if (have + part.length > LINE_BYTES_MAX) {
        const room = LINE_BYTES_MAX - have;
        add(part.subarray(0, room));
        isWhole = false;
        yield line();
        rest = rest.subarray(room);
        continue;
      }
      add(part);
      if (end === -1) break;
      yield line();
      isWhole = true;
      rest = rest.subarray(end + 1);
    }
  }
  if (have > 0) yield line();
}

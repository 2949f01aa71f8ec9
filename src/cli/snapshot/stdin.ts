import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { addAbortSignal } from 'node:stream';
import { CodedError, messageOf } from '../../base/index.ts';
import type { StreamSource } from '../../uploader/index.ts';
import { UsageError } from '../usage-error.ts';

interface StreamFlags {
  readonly stdin?: string;
  readonly stdinCommand?: boolean;
  readonly block?: boolean;
}

const NAME_BYTES_MAX = 255;

/**
 * The stream that the flags request. `words` are the command if there is one, else the paths.
 * Undefined without `--stdin`. Throws {@link UsageError}.
 */
export function streamOf(
  words: readonly string[],
  { stdin: name, stdinCommand = false, block = false }: StreamFlags,
): StreamSource | undefined {
  if (name === undefined) {
    if (stdinCommand) throw new UsageError('--stdin-command needs --stdin NAME');
    return undefined;
  }
  const isName = name !== '' && !/^\.\.?$|[/\0]/.test(name);
  if (!isName || Buffer.byteLength(name) > NAME_BYTES_MAX) {
    throw new UsageError(`--stdin "${name}" is not the name of a file`);
  }
  if (block) throw new UsageError('--stdin and --block exclude each other');
  if (stdinCommand) {
    const [program, ...rest] = words;
    if (program === undefined) throw new UsageError('--stdin-command needs a command after --');
    return { name, read: (signal) => outputOf(program, rest, signal) };
  }
  if (words.length > 0) {
    throw new UsageError(`with --stdin there is no path: "${words[0]}"; give --stdin-command`);
  }
  if (process.stdin.isTTY) throw new UsageError('--stdin: pipe something into this command');
  return { name, read: (signal) => inputOf(addAbortSignal(signal, process.stdin)) };
}

/** Empty input means that the producer failed at once. Throws `STDIN_EMPTY`. */
async function* inputOf(input: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let isEmpty = true;
  for await (const chunk of input) {
    isEmpty = false;
    yield chunk;
  }
  if (isEmpty) throw new CodedError('STDIN_EMPTY', 'nothing came from stdin: nothing is stored');
}

/** The output of a command. Throws `STDIN_COMMAND_FAILED` unless its exit code is 0. */
async function* outputOf(
  program: string,
  rest: readonly string[],
  signal: AbortSignal,
): AsyncGenerator<Uint8Array> {
  const child = spawn(program, rest, { stdio: ['inherit', 'pipe', 'inherit'], signal });
  const ended = endOf(child);
  // Awaited later: until then a rejection must not count as unhandled.
  ended.catch(() => undefined);
  try {
    for await (const chunk of child.stdout) yield chunk as Uint8Array;
    const end = await ended.catch((error: unknown) => `could not be run: ${messageOf(error)}`);
    if (end === undefined) return;
    throw new CodedError('STDIN_COMMAND_FAILED', `${program} ${end}: nothing is stored`);
  } finally {
    if (child.exitCode === null && child.signalCode === null) child.kill();
  }
}

/** Undefined for success. */
async function endOf(child: ChildProcess): Promise<string | undefined> {
  const [code, signal] = (await once(child, 'close')) as [number | null, string | null];
  if (code === 0) return undefined;
  return code === null ? `was ended by ${signal}` : `ended with exit code ${code}`;
}

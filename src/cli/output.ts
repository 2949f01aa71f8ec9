import { fstatSync, writeSync } from 'node:fs';
import { messageOf, systemCode } from '../base/index.ts';

const STDOUT = 1;

/** What became of stdout in this process. */
const state: { isGuarded: boolean; isClosed: boolean; error: Error | undefined; isFile: boolean } =
  {
    isGuarded: false,
    isClosed: false,
    error: undefined,
    isFile: false,
  };

/**
 * From here on a closed pipe behind stdout or stderr ends output, and nothing else: `| head` is no
 * error, and a backup does not depend on who reads of its progress. Node would end the process.
 */
export function guardOutput(): void {
  if (state.isGuarded) return;
  state.isGuarded = true;
  process.stdout.on('error', note);
  // Nobody is left to read it.
  process.stderr.on('error', () => undefined);
  try {
    state.isFile = fstatSync(STDOUT).isFile();
  } catch {
    // Without a stdout there is no file behind it.
  }
}

function note(error: Error): void {
  state.isClosed = true;
  if (systemCode(error) !== 'EPIPE') state.error ??= error;
}

/** Whether anybody gets what is written: loops that only print end when it is false. */
export const isOutputOpen = (): boolean => !state.isClosed;

/** Resolves when more can be written. What nobody can get is dropped. */
export async function writeOutput(data: string | Uint8Array): Promise<void> {
  if (write(data) || state.isClosed) return;
  await nextOf('drain', 'error');
}

/** One of the events of stdout, whichever comes first. */
function nextOf(...events: readonly string[]): Promise<void> {
  return new Promise((resolve) => {
    const come = (): void => {
      for (const event of events) process.stdout.off(event, come);
      resolve();
    };
    for (const event of events) process.stdout.on(event, come);
  });
}

/** The same where there is little to write. */
export function printText(text: string): void {
  write(text);
}

function write(data: string | Uint8Array): boolean {
  guardOutput();
  if (state.isClosed) return true;
  if (!state.isFile) return process.stdout.write(data);
  // Node takes a write that was cut short, as by a disk that is filling up, for a whole one.
  const bytes = typeof data === 'string' ? Buffer.from(data) : data;
  try {
    for (let done = 0; done < bytes.length;) done += writeSync(STDOUT, bytes, done);
  } catch (error) {
    note(error as Error);
  }
  return true;
}

/**
 * Waits until stdout has all of it. Resolves with a sentence when something could not be written.
 */
export async function finishOutput(): Promise<string | undefined> {
  if (!state.isClosed && process.stdout.writableNeedDrain) {
    await nextOf('drain', 'error');
  }
  // Failures of the last write come as an event of the next round.
  await new Promise((resolve) => setImmediate(resolve));
  return state.error && `cannot write to stdout: ${messageOf(state.error)}`;
}

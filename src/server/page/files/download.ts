import type { ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, untilAborted } from '../../../base/index.ts';

/**
 * Given to the connection at a time; a client has so long for each. Our choices: one that takes
 * less than 1 KiB a second keeps its place from others.
 */
const PART_BYTES = 64 << 10;
const PART_MS = 60_000;
/**
 * Without a byte on a connection on which files are asked for: for as long as a bucket that is away
 * is tried again.
 */
export const SILENT_MS = 300_000;

/**
 * Sends a download as fast as the client takes it, and no faster: in memory are the parts that the
 * repository reads ahead. Throws `CLIENT_STALLED`, and what the bytes throw; the connection is cut
 * then, so that nobody takes a part for the whole. Resolves without a word when the client goes.
 */
export async function sendDownload(
  response: ServerResponse,
  bytes: AsyncIterable<Uint8Array>,
  signal: AbortSignal,
  partMs = PART_MS,
): Promise<void> {
  try {
    for await (const piece of bytes) {
      for (let at = 0; at < piece.length; at += PART_BYTES) {
        if (signal.aborted) return;
        if (response.write(piece.subarray(at, at + PART_BYTES))) continue;
        await drained(response, signal, partMs);
      }
    }
    if (signal.aborted) return;
    response.end();
  } catch (error) {
    cutOff(response);
    if (signal.aborted) return;
    throw error;
  }
}

/**
 * Of HTTP 1.0, which many proxies speak, an end of the connection is the end of the body: only a
 * reset tells that there was more.
 */
function cutOff(response: ServerResponse): void {
  response.socket?.resetAndDestroy();
  response.destroy();
}

async function drained(
  response: ServerResponse,
  signal: AbortSignal,
  partMs: number,
): Promise<void> {
  const done = new AbortController();
  const taken = new Promise<'taken'>((resolve) => {
    response.once('drain', () => {
      resolve('taken');
    });
  });
  const late = sleep(partMs, 'late' as const, { signal: done.signal }).catch(() => 'late' as const);
  let outcome: 'taken' | 'late' | undefined;
  const first = Promise.race([taken, late]).then((which) => (outcome = which));
  try {
    await untilAborted(signal, first);
  } finally {
    done.abort();
  }
  if (outcome !== 'late' || signal.aborted) return;
  const text = `a download was ended: its client took less than ${PART_BYTES} bytes in ${partMs / 1000} seconds`;
  throw new CodedError('CLIENT_STALLED', text);
}

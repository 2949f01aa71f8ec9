import type { ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, untilAborted } from '../../../base/index.ts';

/** Our choices: a client below 1 KiB a second blocks a slot, and is disconnected. */
const PART_BYTES = 64 << 10;
const PART_MS = 60_000;
/** Time limit for a silent connection: as long as the retries of an unreachable bucket. */
export const SILENT_MS = 300_000;

/**
 * Sends a download at the client's speed. Only the parts that the repository reads ahead are in
 * memory. Throws `CLIENT_STALLED`, and errors of the bytes. The connection is reset then, so the
 * client notices the missing rest. Resolves if the client disconnects.
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

/** HTTP 1.0, used by proxies, ends a body by closing. Only a reset shows that data are missing. */
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

import { setTimeout as sleep } from 'node:timers/promises';
import {
  assertReadable,
  describeMovements,
  RecentRates,
  StatusFollower,
  type StatusQuery,
} from '../../agent/index.ts';
import { untilAborted } from '../../base/index.ts';
import { isPassing, whileUnauthorized } from '../../kube/index.ts';
import { interruptSignal } from '../context.ts';
import { isOutputOpen, writeOutput } from '../output/streams.ts';
import { stdoutTerminal } from '../output/live-block.ts';
import { ChangeLog, LiveTable, type WatchFlags } from './watch-screens.ts';

const LOOK_EVERY_MS = 2000;
/** Shorter interval until the first state is known. */
const FIRST_LOOK_MS = 200;

/** `--watch`: runs until Ctrl-C, or until the output is closed. */
export async function watchStatus(query: StatusQuery, flags: WatchFlags): Promise<void> {
  const interrupt = interruptSignal();
  const { signal } = interrupt;
  const stop = new AbortController();
  const following = new AbortController();
  const both = AbortSignal.any([signal, stop.signal]);
  try {
    // A right that stays missing is an error. Outages of the API server are retried.
    const readable = whileUnauthorized(() => assertReadable(query), { signal: both });
    await untilAborted(both, readable.catch(unlessPassing));
    const follower = new StatusFollower(query);
    const running = follower.run(following.signal);
    const isLive = process.stdout.isTTY && (flags.output === undefined || flags.output === 'wide');
    const screen = isLive ? new LiveTable(flags, stdoutTerminal) : new ChangeLog(flags, outputs);
    const rates = new RecentRates();
    while (!signal.aborted && isOutputOpen()) {
      const world = follower.look();
      const rows = world && describeMovements(world);
      if (rows) rates.see(rows, performance.now());
      // Ctrl-C works even if the reader of the output is blocked.
      await untilAborted(both, screen.show(rows, rates, follower.outage));
      await sleep(rows ? LOOK_EVERY_MS : FIRST_LOOK_MS, undefined, { signal }).catch(
        () => undefined,
      );
    }
    following.abort();
    await running;
  } finally {
    following.abort();
    stop.abort();
    interrupt.dispose();
  }
}

function unlessPassing(error: unknown): void {
  if (!isPassing(error)) throw error;
}

const outputs = {
  write: writeOutput,
  warn: (text: string): void => {
    process.stderr.write(text);
  },
};

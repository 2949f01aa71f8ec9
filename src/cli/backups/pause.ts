import type { ClusterFlags } from '../cluster.ts';
import { printLine } from '../output/terminal.ts';
import { readFlags } from './create/flag-values.ts';
import { SCHEDULE } from './noun.ts';
import {
  assertNoneMissing,
  assertSelected,
  selected,
  type SelectFlags,
  selectorText,
} from './selected.ts';
import { withSession } from './session.ts';
import type { Schedule } from './create/specs.ts';

export interface PauseFlags extends ClusterFlags, SelectFlags {
  skipImmediately?: string;
}

/** Throws `NO_SCHEDULE`, `UsageError`, and errors of the API server. */
export async function setPaused(
  isPaused: boolean,
  names: readonly string[],
  { skipImmediately: skip, ...flags }: PauseFlags,
): Promise<void> {
  const { skipImmediately = null } = readFlags<{ skipImmediately?: boolean }>({
    skipImmediately: skip,
  });
  assertSelected(SCHEDULE, names, flags);
  selectorText(flags);
  const word = isPaused ? 'paused' : 'unpaused';
  await withSession(flags, async (session) => {
    const all = await selected(SCHEDULE, names, flags, session, (each) => each as Schedule);
    if (all.found.length === 0 && all.missing.length === 0) {
      process.stderr.write(`there is no schedule in namespace ${session.namespace}\n`);
    }
    for (const { metadata, spec } of all.found) {
      if ((spec?.paused === true) === isPaused) {
        printLine(`schedule ${metadata.name} is ${word} already`);
        continue;
      }
      // As in Velero: null lets the server decide about the next backup.
      const patch = {
        metadata: { uid: metadata.uid },
        spec: { paused: isPaused, skipImmediately },
      };
      await session.client.patch(SCHEDULE.resource, metadata, patch, { signal: session.signal });
      printLine(`schedule ${metadata.name} is ${word}`);
    }
    assertNoneMissing(all);
  });
}

import type { ClusterFlags } from '../../cluster.ts';
import { isOutputOpen, writeOutput } from '../../output/streams.ts';
import { printJson, setDocumentFormat } from '../../output/terminal.ts';
import { byPrefixAndTime } from '../columns.ts';
import { describeRun, type DescribedRun } from './describe-run.ts';
import { runLines } from './describe-text.ts';
import { describeSchedule, scheduleLines } from './describe-schedule.ts';
import type { Noun } from '../noun.ts';
import { assertNoneMissing, selected, type SelectFlags, selectorText } from '../selected.ts';
import { withSession } from '../session.ts';

export interface DescribeFlags extends ClusterFlags, SelectFlags {
  details?: boolean;
  output?: 'json' | 'yaml';
}

/**
 * Prints the found objects first, then throws `NO_BACKUP` or the same for other kinds. Also throws
 * `UsageError` and errors of the API server.
 */
export async function describeObjects(
  noun: Noun,
  names: readonly string[],
  flags: DescribeFlags,
): Promise<void> {
  selectorText(flags);
  const { output } = flags;
  await withSession(flags, async (session) => {
    // Objects are read again one by one, because all at once could be large.
    const all = await selected(noun, names, flags, session, ({ metadata: { name } }) => ({ name }));
    if (names.length === 0)
      all.found.sort((a, b) => byPrefixAndTime({ ...a, cells: [] }, { ...b, cells: [] }));
    const documents: object[] = [];
    for (const [at, { name }] of all.found.entries()) {
      if (!isOutputOpen()) break;
      const ref = { namespace: session.namespace, name };
      const object = await session.client.find(noun.resource, ref, { signal: session.signal });
      if (!object) continue;
      const isSchedule = noun.word === 'schedule';
      const described = isSchedule
        ? await describeSchedule(object, session)
        : await describeRun(noun, object, session);
      if (output !== undefined) {
        documents.push(described);
        continue;
      }
      const nowMs = Number(session.client.clock.nowNs() / 1_000_000n);
      const lines = isSchedule
        ? scheduleLines(described as Awaited<ReturnType<typeof describeSchedule>>, nowMs)
        : runLines(described as DescribedRun, { isDetailed: flags.details === true, nowMs });
      await writeOutput(`${[...(at === 0 ? [] : ['']), ...lines].join('\n')}\n`);
    }
    if (output !== undefined && (documents.length > 0 || names.length === 0)) {
      await setDocumentFormat(output);
      printJson(documents.length === 1 ? documents[0] : documents);
    } else if (all.found.length === 0 && names.length === 0) {
      process.stderr.write(`there is no ${noun.word} in namespace ${session.namespace}\n`);
    }
    assertNoneMissing(all);
  });
}

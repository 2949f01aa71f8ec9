import { apiVersionOf, type KubeObject, validLabel } from '../../kube/index.ts';
import { formatBytes, isCode, lookup } from '../../base/index.ts';
import type { ClusterFlags } from '../cluster.ts';
import { printText } from '../output/streams.ts';
import type { Column } from '../output/table.ts';
import { printable, printJson, printTable, setDocumentFormat } from '../output/terminal.ts';
import {
  BACKUP_COLUMNS,
  backupCells,
  byPrefixAndTime,
  RESTORE_COLUMNS,
  restoreCells,
  SCHEDULE_COLUMNS,
  scheduleCells,
  type Shown,
} from './columns.ts';
import type { Noun } from './noun.ts';
import { assertNoneMissing, selected, type SelectFlags, selectorText } from './selected.ts';
import { type Session, withSession } from './session.ts';
import { MOVEMENTS } from './volumes.ts';

export interface GetFlags extends ClusterFlags, SelectFlags {
  output?: 'json' | 'yaml' | 'wide' | 'name' | 'table';
}

/**
 * Prints the found objects first, then throws `NO_BACKUP` or the same for other kinds. Also throws
 * `UsageError` and errors of the API server.
 */
export async function getObjects(
  noun: Noun,
  names: readonly string[],
  flags: GetFlags,
): Promise<void> {
  selectorText(flags);
  const { output } = flags;
  await withSession(flags, async (session) => {
    if (output === 'json' || output === 'yaml') {
      const all = await selected(noun, names, flags, session, (object) => object);
      await setDocumentFormat(output);
      if (all.found.length > 0 || names.length === 0) printJson(documentOf(noun, all.found));
      assertNoneMissing(all);
      return;
    }
    const nowMs = Number(session.client.clock.nowNs() / 1_000_000n);
    const all = await selected(noun, names, flags, session, (object): Shown => {
      const { name } = object.metadata;
      return { name, cells: output === 'name' ? [] : cellsOf(noun, object, nowMs) };
    });
    if (names.length === 0) all.found.sort(byPrefixAndTime);
    if (output === 'name') {
      const { plural } = noun.resource;
      for (const { name } of all.found) {
        printText(printable(`${plural.slice(0, -1)}.velero.io/${name}`) + '\n');
      }
    } else if (all.found.length > 0) await printShown(noun, all.found, output, session);
    else if (names.length === 0) process.stderr.write(`${noneText(noun, flags, session)}\n`);
    assertNoneMissing(all);
  });
}

/** New users often start with an empty list, so the text names the next step. */
const noneText = ({ word }: Noun, { selector }: SelectFlags, { namespace }: Session): string =>
  selector !== undefined
    ? `there is no ${word} with these labels in namespace ${namespace}`
    : `there is no ${word} in namespace ${namespace}; "longshore ${word} create --help" says how to make one`;

/** A single object, else a list, as in Velero. */
function documentOf({ resource }: Noun, found: readonly KubeObject[]): object {
  const apiVersion = apiVersionOf(resource);
  const { kind } = resource;
  // Puts the fields that readers look for first.
  const items = found.map((object) => ({ apiVersion, kind, ...object }));
  if (items.length === 1 && items[0]) return items[0];
  return { apiVersion, kind: `${kind}List`, metadata: {}, items };
}

function cellsOf({ word }: Noun, object: KubeObject, nowMs: number): string[] {
  switch (word) {
    case 'backup':
      return backupCells(object, nowMs);
    case 'restore':
      return restoreCells(object);
    case 'schedule':
      return scheduleCells(object, nowMs);
  }
}

const COLUMNS: Readonly<Record<Noun['word'], readonly Column[]>> = {
  backup: BACKUP_COLUMNS,
  restore: RESTORE_COLUMNS,
  schedule: SCHEDULE_COLUMNS,
};

async function printShown(
  noun: Noun,
  found: readonly Shown[],
  output: GetFlags['output'],
  session: Session,
): Promise<void> {
  const columns = COLUMNS[noun.word];
  if (output !== 'wide' || noun.word === 'schedule') {
    await printTable(
      columns,
      found.map(({ cells }) => cells),
      { isWide: output === 'wide' },
    );
    return;
  }
  const moved = await movedOf(noun, session);
  const rows = found.map(({ name, cells }) => {
    const { volumes, bytes } = moved.get(validLabel(name)) ?? { volumes: 0, bytes: 0 };
    return [
      ...cells,
      volumes === 0 ? '' : String(volumes),
      volumes === 0 ? '' : formatBytes(bytes),
    ];
  });
  await printTable([...columns, 'VOLUMES', 'VOLUME BYTES'], rows, { isWide: true });
}

interface Moved {
  volumes: number;
  bytes: number;
}

/** Moved volumes and bytes of each run, by label. Drops each page after counting. */
async function movedOf(
  { word }: Noun,
  { client, namespace, signal }: Session,
): Promise<ReadonlyMap<string, Moved>> {
  const label = `velero.io/${word}-name`;
  const moved = new Map<string, Moved>();
  for (const resource of MOVEMENTS[word]) {
    try {
      const options = { namespace, labelSelector: label, signal };
      await client.collect(resource, options, ({ metadata, status }) => {
        const name = lookup(metadata.labels, label) ?? '';
        const { volumes, bytes } = moved.get(name) ?? { volumes: 0, bytes: 0 };
        const more = status?.progress?.bytesDone ?? 0;
        moved.set(name, { volumes: volumes + 1, bytes: bytes + more });
        return [];
      });
    } catch (error) {
      // The cluster may lack the kind.
      if (!isCode(error, 'KUBE_NOT_FOUND', 'KUBE_FORBIDDEN')) throw error;
    }
  }
  return moved;
}

import { CodedError, redactAndCut } from '../../base/index.ts';
import {
  apiVersionOf,
  BACKUP_STORAGE_LOCATIONS,
  type BackupStorageLocation,
} from '../../kube/index.ts';
import { timeCell } from '../backups/columns.ts';
import { withSession } from '../backups/session.ts';
import type { ClusterFlags } from '../cluster.ts';
import { printText } from '../output/streams.ts';
import type { Column } from '../output/table.ts';
import { printable, printJson, printTable, setDocumentFormat } from '../output/terminal.ts';

export interface GetLocationFlags extends ClusterFlags {
  output?: 'json' | 'yaml' | 'wide' | 'name' | 'table';
}

/** Velero's columns, in its order. */
export const LOCATION_COLUMNS: readonly Column[] = [
  { title: 'NAME', isWhole: true },
  { title: 'PROVIDER', leaveOut: 3 },
  { title: 'BUCKET/PREFIX', leaveOut: 4, min: 12 },
  { title: 'PHASE' },
  { title: 'LAST VALIDATED', leaveOut: 5 },
  { title: 'ACCESS MODE', leaveOut: 2 },
  { title: 'DEFAULT', leaveOut: 1 },
];

/**
 * Lists BackupStorageLocations, and prints problems on stderr. Throws errors of the API server, and
 * `NO_LOCATION` after the existing locations are printed.
 */
export async function getLocations(
  names: readonly string[],
  flags: GetLocationFlags,
): Promise<void> {
  const { output } = flags;
  await withSession(flags, async (session) => {
    const { client, namespace, signal } = session;
    const found: BackupStorageLocation[] = [];
    let missing: string | undefined;
    if (names.length === 0) {
      found.push(...(await client.list(BACKUP_STORAGE_LOCATIONS, { namespace, signal })));
    }
    for (const name of new Set(names)) {
      const ref = { namespace, name };
      const location = await client.find(BACKUP_STORAGE_LOCATIONS, ref, { signal });
      if (location) found.push(location);
      else missing ??= name;
    }
    found.sort((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));
    if (output === 'json' || output === 'yaml') {
      await setDocumentFormat(output);
      if (found.length > 0 || names.length === 0) printJson(documentOf(found));
    } else if (output === 'name') {
      for (const { metadata } of found) {
        printText(`${printable(`backupstoragelocation.velero.io/${metadata.name}`)}\n`);
      }
    } else if (found.length > 0) {
      await printTable(LOCATION_COLUMNS, found.map(cellsOf), { isWide: output === 'wide' });
      for (const location of found) tellProblem(location);
    } else if (names.length === 0) {
      const how = '"longshore install" makes one, and so does "velero backup-location create"';
      process.stderr.write(`there is no backup location in namespace ${namespace}; ${how}\n`);
    }
    if (missing !== undefined) {
      const text = `there is no BackupStorageLocation ${namespace}/${missing}; "longshore backup-location get" lists those that there are`;
      throw new CodedError('NO_LOCATION', text);
    }
  });
}

/** A single object, else a list, as in Velero. */
function documentOf(found: readonly BackupStorageLocation[]): object {
  const apiVersion = apiVersionOf(BACKUP_STORAGE_LOCATIONS);
  const { kind } = BACKUP_STORAGE_LOCATIONS;
  const items = found.map((location) => ({ apiVersion, kind, ...location }));
  if (items.length === 1 && items[0]) return items[0];
  return { apiVersion, kind: `${kind}List`, metadata: {}, items };
}

const phaseOf = ({ status }: BackupStorageLocation): string => status?.phase ?? 'Unknown';

function cellsOf(location: BackupStorageLocation): string[] {
  const { metadata, spec = {}, status } = location;
  const { bucket = '', prefix = '' } = spec.objectStorage ?? {};
  return [
    metadata.name,
    spec.provider ?? '',
    prefix === '' ? bucket : `${bucket}/${prefix}`,
    phaseOf(location),
    timeCell(status?.lastValidationTime) || 'never',
    spec.accessMode || 'ReadWrite',
    spec.default === true ? 'true' : '',
  ];
}

/** Goes to stderr, because a table has no room for a sentence. */
function tellProblem(location: BackupStorageLocation): void {
  const { name } = location.metadata;
  if (phaseOf(location) === 'Available') return;
  const why = redactAndCut(location.status?.message ?? '');
  const text =
    phaseOf(location) === 'Unavailable'
      ? `is Unavailable: ${why || 'no reason was noted'}; "longshore backup-location check ${name}" looks into it`
      : "was not validated yet: does a server run (longshore server, or Velero's)?";
  process.stderr.write(printable(`location ${name} ${text}`) + '\n');
}

import {
  IGNORE_MISSING,
  type KnownObjects,
  type LocationFinding,
  type LocationSurvey,
  surveyLocation,
} from '../../archive/index.ts';
import { isCanceled, messageOf } from '../../base/index.ts';
import { parseBackupStorageLocation } from '../../config/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  isSynced,
  isUsable,
  RESTORES,
  SIGNATURE,
  SIGNED,
} from '../../kube/index.ts';
import { grantCommand, loadLocation, unreadableSecrets } from '../../repository-access/index.ts';
import { countOf } from '../output/numbers.ts';
import { withBucketOfLocation } from '../backups/bucket.ts';
import type { Run } from '../backups/noun.ts';
import { type Session, withSession } from '../backups/session.ts';
import type { ClusterFlags } from '../cluster.ts';
import { ExitCode } from '../exit.ts';
import type { OutputFlags } from '../output/format-options.ts';
import { printable, printJson, printLine, printTable } from '../output/terminal.ts';

export interface CheckLocationFlags extends ClusterFlags, OutputFlags {
  all?: boolean;
  json?: boolean;
}

type Checked = { readonly location: string } & (LocationSurvey | { readonly error: string });

/** Checks locations one by one, also after an unreadable one. Throws `NO_LOCATION`. */
export async function checkLocations(
  names: readonly string[],
  flags: CheckLocationFlags,
): Promise<void> {
  const checked = await withSession(flags, async (session) => {
    const locations = await locationsOf(names, session);
    const all: Checked[] = [];
    for (const location of locations) {
      const { name } = location.metadata;
      try {
        const nowNs = session.client.clock.nowNs();
        const survey = await withBucketOfLocation(location, session, (bucket) =>
          surveyLocation(bucket, () => knownObjects(name, session), {
            signal: session.signal,
            nowNs,
          }),
        );
        const findings = [...survey.findings, ...(await secretFindings(location, session))];
        all.push({ location: name, ...survey, findings });
      } catch (error) {
        session.signal.throwIfAborted();
        if (isCanceled(error)) throw error;
        all.push({ location: name, error: messageOf(error) });
      }
    }
    return all;
  });
  if (flags.json === true) printJson(checked);
  else await print(checked, flags.all === true);
  const isUnread = checked.some((each) => 'error' in each);
  const isHarmed = checked.some(
    (each) => 'findings' in each && each.findings.some(({ harm }) => harm),
  );
  process.exitCode = isUnread ? ExitCode.failed : isHarmed ? ExitCode.partly : ExitCode.done;
}

/** A person who checks a location may read Secrets that Longshore's accounts cannot. */
async function secretFindings(
  location: Awaited<ReturnType<typeof loadLocation>>,
  session: Session,
): Promise<LocationFinding[]> {
  const names = await unreadableSecrets(location, session);
  return names.map((name) => ({
    kind: 'SecretNotReadable',
    name,
    harm: true,
    text: `accounts of Longshore cannot read this Secret of the location, so backups of volumes fail; run: ${grantCommand(session.namespace, name)}`,
  }));
}

async function locationsOf(
  names: readonly string[],
  session: Session,
): Promise<Awaited<ReturnType<typeof loadLocation>>[]> {
  if (names.length > 0) {
    return await Promise.all([...new Set(names)].map((name) => loadLocation(name, session)));
  }
  const { client, namespace, signal } = session;
  const all = await client.list(BACKUP_STORAGE_LOCATIONS, { namespace, signal });
  return all.map((each) => parseBackupStorageLocation({ ...each, kind: 'BackupStorageLocation' }));
}

/** Keeps names and phases of all objects. */
export async function knownObjects(
  location: string,
  { client, namespace, signal }: Session,
): Promise<KnownObjects> {
  const signed = new Set<string>();
  const signatures = new Map<string, string>();
  const withoutPrevious = new Set<string>();
  let newestUnsigned: string | undefined;
  const backups = await client.collect(BACKUPS, { namespace, signal }, (object) => {
    const { metadata, spec, status } = object as Run;
    if (spec?.storageLocation !== location) return [];
    const { phase = '', completionTimestamp } = status ?? {};
    const signature = metadata.annotations?.[SIGNATURE];
    if (signature !== undefined) signatures.set(metadata.name, signature);
    if (metadata.annotations?.[SIGNED] === 'true') signed.add(metadata.name);
    else if (isUsable(phase) && !isSynced(object) && completionTimestamp) {
      if (completionTimestamp > (newestUnsigned ?? '')) newestUnsigned = completionTimestamp;
    }
    if (metadata.annotations?.[IGNORE_MISSING] === 'true') withoutPrevious.add(metadata.name);
    return [[metadata.name, phase] as const];
  });
  const restores = await client.collect(RESTORES, { namespace, signal }, ({ metadata }) => [
    metadata.name,
  ]);
  return {
    backups: new Map(backups),
    signed,
    signatures,
    withoutPrevious,
    newestUnsigned,
    restores: new Set(restores),
  };
}

async function print(checked: readonly Checked[], isAll: boolean): Promise<void> {
  const rows = checked.flatMap((each) => {
    if ('error' in each) return [[each.location, 'Unreadable', '', each.error]];
    return each.findings
      .filter(({ harm }) => harm || isAll)
      .map(({ kind, name, text }) => [each.location, kind, name, text]);
  });
  if (rows.length > 0) await printTable(['LOCATION', 'WHAT', 'NAME', 'WHY'], rows);
  for (const each of checked) {
    if ('error' in each) continue;
    const hidden = each.findings.filter(({ harm }) => !harm).length;
    const harmful = each.findings.length - hidden;
    const counts = `${countOf(each.backups, 'backups')}, ${countOf(each.restores, 'restores')}`;
    const { signed = 0, ...others } = each.signatures;
    const rest = Object.values(others).reduce((sum, count) => sum + count, 0);
    const trust = signed + rest === 0 ? '' : `, ${signed} of ${signed + rest} signed`;
    const verdict = harmful === 0 ? 'nothing is wrong' : countOf(harmful, 'problems');
    const more =
      hidden > 0 && !isAll ? `; --all shows ${hidden} more that are only good to know` : '';
    printLine(printable(`location ${each.location}: ${counts}${trust}, ${verdict}${more}`));
  }
  if (checked.length === 0) {
    process.stderr.write('longshore: there is no BackupStorageLocation\n');
  }
}

import { CodedError, isCode } from '../../../base/index.ts';
import { environment } from '../../../config/index.ts';
import {
  apiVersionOf,
  BACKUP_STORAGE_LOCATIONS,
  type KubeObject,
  type NewObject,
  type Resource,
  VOLUME_SNAPSHOT_LOCATIONS,
} from '../../../kube/index.ts';
import { printJson, printLine, setDocumentFormat } from '../../output/terminal.ts';
import { UsageError } from '../../usage-error.ts';
import { BACKUP, findNamed, type Noun, phaseOf, SCHEDULE } from '../noun.ts';
import { type Session, withSession } from '../session.ts';
import { type BackupSpecFlags, readFlags } from './flag-values.ts';
import {
  assertBackupFlags,
  assertCron,
  assertName,
  assertScheduleName,
  backupSpecOf,
  notesOf,
  type Schedule,
  scheduledBackup,
  timestampedName,
} from './specs.ts';
import { waitForEnd } from '../wait.ts';

export interface CreateBackupFlags extends BackupSpecFlags {
  fromSchedule?: string;
  wait?: boolean;
}

const NOT_WAITING = 'the wait ends';

/** Throws `UsageError`, `NO_SCHEDULE`, `NO_LOCATION`, `ALREADY_THERE` and `NOT_COMPLETED`. */
export async function createBackup(name: string | undefined, given: object): Promise<void> {
  const flags = readFlags<CreateBackupFlags>(given);
  const { fromSchedule, output } = flags;
  if (fromSchedule?.trim() === '') throw new UsageError('--from-schedule has no value');
  if (name === undefined && fromSchedule === undefined) {
    throw new UsageError('name the backup; only with --from-schedule one is made up');
  }
  if (name !== undefined) assertName('Backup', name);
  assertBackupFlags(flags);
  const spec = backupSpecOf(flags);
  if (output !== undefined && fromSchedule === undefined) {
    const namespace = flags.namespace ?? environment.veleroNamespace;
    const metadata = { namespace, name: name ?? '', ...notesOf(flags) };
    await printObject(BACKUP.resource, { metadata, spec }, output);
    return;
  }
  await withSession(
    flags,
    async (session) => {
      const { client, namespace, signal } = session;
      const made =
        fromSchedule === undefined
          ? ({ metadata: { ...notesOf(flags) }, spec } as unknown as NewObject<KubeObject>)
          : await ofSchedule(fromSchedule.trim(), flags, session);
      const nowMs = Number(client.clock.nowNs() / 1_000_000n);
      const own = name ?? timestampedName(fromSchedule?.trim() ?? '', nowMs);
      const backup = { ...made, metadata: { ...made.metadata, namespace, name: own } };
      if (output !== undefined) {
        await printObject(BACKUP.resource, backup, output);
        return;
      }
      if (fromSchedule === undefined) await assertLocations(flags, session);
      const created = await createOne(BACKUP, backup, session);
      printLine(`backup ${own} is requested`);
      if (flags.wait === true) await waitForEnd(BACKUP, created, session);
      else printLine(`see "longshore backup describe ${own}", "longshore backup logs ${own}"`);
      signal.throwIfAborted();
    },
    NOT_WAITING,
  );
}

async function ofSchedule(
  name: string,
  flags: CreateBackupFlags,
  session: Session,
): Promise<NewObject<KubeObject>> {
  const schedule = (await findNamed(SCHEDULE, name, session)) as Schedule;
  const other = backupSpecOf(flags);
  const nothing = backupSpecOf({ includeNamespaces: ['*'] });
  if (JSON.stringify(other) !== JSON.stringify(nothing)) {
    process.stderr.write(
      'longshore: the template of the schedule says what is taken; flags that say something else are ignored\n',
    );
  }
  return scheduledBackup(schedule, flags);
}

/** A backup to a missing location would fail only later. Throws `NO_LOCATION`. */
async function assertLocations(
  { storageLocation, volumeSnapshotLocations = [] }: BackupSpecFlags,
  { client, namespace, signal }: Session,
): Promise<void> {
  const wanted: [Resource<KubeObject>, string][] = [
    ...(storageLocation
      ? [[BACKUP_STORAGE_LOCATIONS as Resource<KubeObject>, storageLocation] as const]
      : []),
    ...volumeSnapshotLocations.map((name) => [VOLUME_SNAPSHOT_LOCATIONS, name] as const),
  ].map(([resource, name]) => [resource, name]);
  for (const [resource, name] of wanted) {
    try {
      if (await client.find(resource, { namespace, name }, { signal })) continue;
    } catch (error) {
      // Users who create backups may lack the right to read locations. The server checks too.
      if (isCode(error, 'KUBE_FORBIDDEN')) continue;
      throw error;
    }
    const text = `there is no ${resource.kind} ${namespace}/${name}; nothing was created ("kubectl -n ${namespace} get ${resource.plural}" lists those that there are)`;
    throw new CodedError('NO_LOCATION', text);
  }
}

export interface CreateScheduleFlags extends BackupSpecFlags {
  schedule?: string;
  useOwnerReferencesInBackup?: boolean;
  paused?: boolean;
  skipImmediately?: boolean;
}

/** Throws the errors of {@link createBackup}. */
export async function createSchedule(name: string, given: object): Promise<void> {
  const flags = readFlags<CreateScheduleFlags>(given);
  const { schedule = '', output } = flags;
  assertName('Schedule', name);
  assertScheduleName(name);
  if (schedule === '') throw new UsageError('--schedule says when, such as "0 2 * * *"');
  assertCron(schedule);
  assertBackupFlags(flags);
  const spec = {
    template: backupSpecOf(flags),
    schedule,
    useOwnerReferencesInBackup: flags.useOwnerReferencesInBackup === true,
    ...(flags.paused === true && { paused: true }),
    ...(flags.skipImmediately !== undefined && { skipImmediately: flags.skipImmediately }),
  };
  if (output !== undefined) {
    const namespace = flags.namespace ?? environment.veleroNamespace;
    const metadata = { namespace, name, ...notesOf(flags) };
    await printObject(SCHEDULE.resource, { metadata, spec }, output);
    return;
  }
  await withSession(flags, async (session) => {
    const metadata = { namespace: session.namespace, name, ...notesOf(flags) };
    await assertLocations(flags, session);
    await createOne(SCHEDULE, { metadata, spec }, session);
    const more = flags.paused === true ? '; it is paused' : '';
    printLine(`schedule ${name} is created${more}`);
  });
}

/** Throws `ALREADY_THERE`. */
export async function createOne(
  noun: Noun,
  object: NewObject<KubeObject>,
  { client, namespace, signal }: Session,
): Promise<KubeObject> {
  const { resource, word } = noun;
  try {
    return await client.create(resource, object, { signal });
  } catch (error) {
    if (isCode(error, 'KUBE_NOT_FOUND')) throw notThere(noun, namespace, error);
    if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    const name = object.metadata.name ?? '';
    const there = await client.find(resource, { namespace, name }, { signal });
    const phase = there ? ` (${phaseOf(there)})` : '';
    const text = `there is a ${word} ${name} already${phase}; choose another name, or delete it with "longshore ${word} delete ${name}"`;
    throw new CodedError('ALREADY_THERE', text, { cause: error });
  }
}

/** The kind or the namespace is missing. */
const notThere = ({ resource, word }: Noun, namespace: string, cause: CodedError): CodedError =>
  new CodedError(
    'NOT_INSTALLED',
    `the ${word} cannot be created: the cluster has no namespace ${namespace}, or no ${resource.plural}; install Velero's definitions first, by "longshore install" or "velero install", or say where they are by --namespace`,
    { cause },
  );

/** Prints the object without creating it. */
export async function printObject(
  resource: Resource<KubeObject>,
  { metadata, spec }: object & { metadata: object; spec?: unknown },
  output: 'json' | 'yaml',
): Promise<void> {
  await setDocumentFormat(output);
  printJson({ apiVersion: apiVersionOf(resource), kind: resource.kind, metadata, spec });
}

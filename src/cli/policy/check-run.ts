import { readFileSync } from 'node:fs';
import { isMoverServed } from '../../agent/index.ts';
import { moverErrors, setDefaults } from '../../backup/index.ts';
import { CodedError, isCode, matchesGlob, messageOf } from '../../base/index.ts';
import {
  type Backup,
  type Backup as StoredBackup,
  BACKUPS,
  type BackupSpec,
  type KubeClient,
} from '../../kube/index.ts';
import {
  choicesOf,
  globalPoliciesOf,
  namespacesOf,
  ownPoliciesOf,
  readsOf,
  snapshotHindrances,
} from '../../plugin/index.ts';
import {
  BadVolumePolicyError,
  type CheckedVolume,
  type CheckOptions,
  checkVolumes,
  ignoredInGlobal,
  isOfVelero,
  ListedVolumes,
  movingRules,
  type PolicyProblem,
  readPolicyFile,
  type SnapshotHindrance,
  type VolumePolicies,
  withGlobalPolicies,
} from '../../volume-policy/index.ts';
import { type ClusterFlags, clusterOf } from '../cluster.ts';
import { interruptSignal } from '../context.ts';
import { ExitCode } from '../exit.ts';
import { columnsOf, documentOf, rowOf, ruleDocuments, summaryOf } from './check-rows.ts';
import { type BackupServer, backupServerOf } from './check-server.ts';
import { notedPolicies } from '../../server/compose/index.ts';
import { printable, printJson, printTable } from '../output/terminal.ts';
import { UsageError } from '../usage-error.ts';

export interface PolicyCheckFlags extends ClusterFlags {
  filename?: string;
  global?: string;
  backup?: string;
  fileOnly?: boolean;
  includeNamespaces?: string;
  snapshotVolumes?: boolean;
  snapshotMoveData?: boolean;
  defaultVolumesToFsBackup?: boolean;
  features?: string;
  all?: boolean;
  json?: boolean;
  output?: string;
}

/** Prints the treatment of each volume. Sets the exit code if a backup would report errors. */
export async function checkPolicies(flags: PolicyCheckFlags): Promise<void> {
  if (flags.filename === undefined && flags.backup === undefined) {
    throw new UsageError('nothing to check: give the file of the policies with -f, or a Backup');
  }
  if (flags.fileOnly === true && flags.filename === undefined) {
    throw new UsageError('--file-only needs the file of the policies: -f FILE');
  }
  const own = readFile(flags, flags.filename);
  const global = readFile(flags, flags.global);
  if (flags.fileOnly === true) {
    const policies = withGlobalPolicies(own, global);
    tellWarnings(policies, global);
    if (flags.json === true) printJson(documentFor(policies, []));
    else process.stderr.write(`${flags.filename ?? ''} is valid\n`);
    return;
  }
  const { client, namespace } = clusterOf(flags, 'longshore-policy-check');
  const interrupt = interruptSignal();
  try {
    await checkCluster({ client, namespace, flags, own, global, signal: interrupt.signal });
  } finally {
    interrupt.dispose();
    client.close();
  }
}

/** A person waits, so outages are reported at once. */
const ONCE = { isPatient: false };

interface CheckInput {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly flags: PolicyCheckFlags;
  readonly own: VolumePolicies | undefined;
  readonly global: VolumePolicies | undefined;
  readonly signal: AbortSignal;
}

async function checkCluster(input: CheckInput): Promise<void> {
  const { client, flags, signal } = input;
  const server = await backupServerOf(client, input.namespace, signal);
  const backup = await backupOf(input, server);
  const policies = await policiesFor(input, backup);
  tellWarnings(policies, input.global);
  tellWhatIsLeftOut(backup);
  const hindrance = await hindranceFor(client, backup, signal);
  const options = { ...optionsFor(flags, policies, backup, server), hindrance };
  const named = flags.includeNamespaces?.split(',') ?? [];
  const isLiteral = named.length > 0 && named.every((name) => !/[*?[]/.test(name));
  const volumes = new ListedVolumes(readsOf(client, { signal, ...ONCE }), {
    namespaces: isLiteral ? named : namespacesOf(backup),
    keep: ({ claim, withoutFiles }) =>
      flags.all === true || claim !== undefined || withoutFiles === undefined,
  });
  const checked = await checkVolumes(volumes, options);
  const refusals = await refusalsFor(input, policies, {
    ...backup.spec,
    snapshotMoveData: options.movesData,
  });
  if (flags.json === true) printJson({ ...documentFor(policies, checked), refusals });
  else {
    const isWide = flags.output === 'wide';
    const columns = columnsOf(checked, isWide);
    await printTable(
      columns,
      checked.map((each) => rowOf(each, columns, policies)),
      { isWide },
    );
    for (const line of summaryOf(policies, checked)) process.stderr.write(`${printable(line)}\n`);
    for (const refusal of refusals) {
      process.stderr.write(`${printable(`error: the backup would be refused: ${refusal}`)}\n`);
    }
  }
  const hasErrors = refusals.length > 0 || checked.some(({ outcome }) => outcome === 'error');
  if (hasErrors) process.exitCode = ExitCode.partly;
}

/** The named Backup or an empty one, with the server's defaults. */
async function backupOf(
  { client, namespace, flags, signal }: CheckInput,
  { defaults, globalPolicies }: BackupServer,
): Promise<Backup> {
  const { backup: name } = flags;
  const found =
    name === undefined
      ? { metadata: { namespace, name: '' } }
      : await client.find(BACKUPS, { namespace, name }, { signal });
  if (!found) {
    throw new CodedError('NO_BACKUP', `there is no Backup ${name ?? ''} in namespace ${namespace}`);
  }
  const { spec: asked } = found as { spec?: BackupSpec };
  const spec: BackupSpec = { ...asked };
  setDefaults(spec, defaults);
  return notedPolicies({ ...found, spec } as StoredBackup, globalPolicies);
}

/** A file replaces the ConfigMap of the Backup, or the ConfigMap for all backups. */
async function policiesFor(
  { client, own, global }: CheckInput,
  backup: Backup,
): Promise<VolumePolicies | undefined> {
  try {
    const first = own ?? (await ownPoliciesOf(client, backup, ONCE));
    const last = global ?? (await globalPoliciesOf(client, backup, ONCE));
    return withGlobalPolicies(first, last);
  } catch (error) {
    throw error instanceof BadVolumePolicyError ? told(error, {}) : error;
  }
}

/** Users may lack the right to list classes. The rest is still useful without it. */
async function hindranceFor(
  client: KubeClient,
  backup: Backup,
  signal: AbortSignal,
): Promise<SnapshotHindrance | undefined> {
  try {
    return await snapshotHindrances(client, backup, signal);
  } catch (error) {
    if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
    const text = `warning: cannot check that a VolumeSnapshotClass fits each volume: ${messageOf(error)}`;
    process.stderr.write(`${printable(text)}\n`);
    return undefined;
  }
}

/** Checks like the server's validation: a data mover that no agent serves. */
async function refusalsFor(
  { client, namespace }: CheckInput,
  policies: VolumePolicies | undefined,
  spec: Backup['spec'],
): Promise<string[]> {
  try {
    const rules = policies && movingRules(policies);
    return await moverErrors(spec, rules, (mover) => isMoverServed(client, namespace, mover));
  } catch (error) {
    if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
    const text = `warning: cannot check that a node-agent serves each data mover: ${messageOf(error)}`;
    process.stderr.write(`${printable(text)}\n`);
    return [];
  }
}

function optionsFor(
  flags: PolicyCheckFlags,
  policies: VolumePolicies | undefined,
  backup: Backup,
  server: BackupServer,
): CheckOptions {
  const { includedNamespaces, excludedNamespaces, snapshotMoveData } = backup.spec;
  const included = flags.includeNamespaces?.split(',') ?? includedNamespaces ?? [];
  const excluded = excludedNamespaces ?? [];
  const isAmong = (patterns: readonly string[], namespace: string): boolean =>
    patterns.some((pattern) => matchesGlob(pattern, namespace));
  const choices = choicesOf(backup);
  return {
    policies,
    snapshotVolumes: flags.snapshotVolumes ?? choices.snapshotVolumes,
    defaultsToFiles: flags.defaultVolumesToFsBackup ?? choices.defaultsToFiles,
    movesData: flags.snapshotMoveData ?? snapshotMoveData === true,
    hasCsi: flags.features?.split(',').includes('EnableCSI') ?? server.hasCsi,
    hasSnapshotLocation: server.hasSnapshotLocation,
    groupLabel: backup.spec.volumeGroupSnapshotLabelKey ?? '',
    backupExcludePvc: leavesPvcsOut(backup),
    hasNamespace: (namespace) =>
      (included.length === 0 || isAmong(included, namespace)) && !isAmong(excluded, namespace),
  };
}

const PVC_NAMES = ['persistentvolumeclaims', 'persistentvolumeclaim', 'pvc'];

/** Whether the resource filters exclude PVCs, and so also pod volumes of PVCs. */
export function leavesPvcsOut({ spec }: Backup): boolean {
  const included = [
    ...(spec.includedResources ?? []),
    ...(spec.includedNamespaceScopedResources ?? []),
  ];
  const excluded = [
    ...(spec.excludedResources ?? []),
    ...(spec.excludedNamespaceScopedResources ?? []),
  ];
  const hasPvcs = (list: readonly string[]): boolean =>
    list.some((each) => each === '*' || PVC_NAMES.includes(each.toLowerCase()));
  return hasPvcs(excluded) || (included.length > 0 && !hasPvcs(included));
}

function readFile(flags: PolicyCheckFlags, path: string | undefined): VolumePolicies | undefined {
  if (path === undefined) return undefined;
  const source = path === '-' ? 'stdin' : path;
  let text: string;
  try {
    text = readFileSync(path === '-' ? 0 : path, 'utf8');
  } catch (cause) {
    throw new CodedError('UNREADABLE_FILE', `cannot read ${source}: ${messageOf(cause)}`, {
      cause,
    });
  }
  try {
    return readPolicyFile(text, source);
  } catch (error) {
    throw error instanceof BadVolumePolicyError ? told(error, flags) : error;
  }
}

/** Prints each problem on its own line, like a compiler. The error then gives their number. */
function told(error: BadVolumePolicyError, { json }: { readonly json?: boolean }): CodedError {
  const { problems } = error;
  if (json === true) printJson({ valid: false, problems, warnings: [], rules: [], volumes: [] });
  for (const problem of problems) tell(problem, '');
  const source = problems[0]?.source ?? 'the file';
  const count = problems.length === 1 ? 'a problem' : `${problems.length} problems`;
  return new CodedError(
    'BAD_VOLUME_POLICY',
    `${source} has ${count}, and a backup would be refused`,
    {
      cause: error,
    },
  );
}

function tell({ source, line, path, text }: PolicyProblem, kind: string): void {
  const where = path === '' ? '' : `${path}: `;
  process.stderr.write(`${printable(`${source}:${line}: ${kind}${where}${text}`)}\n`);
}

function tellWarnings(
  policies: VolumePolicies | undefined,
  global: VolumePolicies | undefined,
): void {
  for (const warning of policies?.warnings ?? []) tell(warning, 'warning: ');
  for (const { action, place, number } of policies?.rules ?? []) {
    if (isOfVelero(action.type)) continue;
    const text = `Velero 1.18 does not know the action ${action.type}, and refuses the whole document`;
    tell({ ...place, path: `volumePolicies[${number - 1}].action.type`, text }, 'warning: ');
  }
  for (const part of global ? ignoredInGlobal(global) : []) {
    process.stderr.write(`warning: ${part} does not count in policies for all backups\n`);
  }
}

function tellWhatIsLeftOut({ spec }: Backup): void {
  const { labelSelector, orLabelSelectors } = spec;
  if (!labelSelector && !orLabelSelectors) return;
  process.stderr.write(
    'warning: the Backup selects by labels, which is not looked at here: all volumes of its namespaces are shown\n',
  );
}

const documentFor = (policies: VolumePolicies | undefined, checked: readonly CheckedVolume[]) => ({
  valid: true,
  problems: [],
  warnings: policies?.warnings ?? [],
  rules: ruleDocuments(policies, checked),
  volumes: checked.map((each) => documentOf(each)),
});

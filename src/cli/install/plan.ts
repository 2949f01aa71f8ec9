import { existsSync, readFileSync } from 'node:fs';
import { messageOf } from '../../base/index.ts';
import { UsageError } from '../usage-error.ts';
import type { InstallAssets } from './assets.ts';
import { type Manifest, moveInto } from './kustomize.ts';

/** Typed flags, with the names of `velero install`. */
export interface InstallFlags {
  image?: string;
  provider?: string;
  bucket?: string;
  prefix?: string;
  secretFile?: string;
  /** False for `--no-secret`. */
  secret?: boolean;
  /** False for `--no-default-backup-location`. */
  defaultBackupLocation?: boolean;
  backupLocationConfig?: string;
  caCert?: string;
  features?: string;
  /** Comma-separated names. */
  locationSecrets?: string;
}

export const INSTALLED_LABEL = 'app.kubernetes.io/managed-by';
export const INSTALLED_BY = 'longshore-install';
const PROVIDERS = ['aws', 'azure', 'gcp', 'fs'];
const SECRET = 'cloud-credentials';

/** All objects in the order of their creation. Throws {@link UsageError}. */
export function installPlan(
  { definitions, objects }: InstallAssets,
  namespace: string,
  flags: InstallFlags,
): Manifest[] {
  const all = [
    ...definitions,
    namespaceOf(namespace),
    ...objects.filter(({ kind }) => !isWorkload(kind)),
    ...credentialsOf(flags),
    ...locationOf(flags),
    ...objects.filter(({ kind }) => isWorkload(kind)),
  ].map((each) => structuredClone(each));
  moveInto(namespace, all);
  // Cluster-scoped names are unique: two installations cannot share one.
  for (const each of all) {
    each.metadata.labels = { ...each.metadata.labels, [INSTALLED_LABEL]: INSTALLED_BY };
    if (isWorkload(each.kind)) adapt(each, flags);
    if (each.kind === 'Role') nameSecrets(each, flags);
  }
  return all;
}

const isWorkload = (kind: string): boolean => kind === 'Deployment' || kind === 'DaemonSet';

/** Pods that restore volumes run as root, so the namespace must allow it. */
const namespaceOf = (name: string): Manifest => ({
  apiVersion: 'v1',
  kind: 'Namespace',
  metadata: {
    name,
    labels: {
      component: 'velero',
      'pod-security.kubernetes.io/enforce': 'privileged',
      'pod-security.kubernetes.io/audit': 'privileged',
      'pod-security.kubernetes.io/warn': 'privileged',
    },
  },
});

function credentialsOf({ secret, secretFile, provider }: InstallFlags): Manifest[] {
  if (secret === false) {
    if (secretFile === undefined) return [];
    throw new UsageError('give --secret-file or --no-secret, not both');
  }
  if (secretFile === undefined) {
    if (provider === 'fs') return [];
    throw new UsageError('give --secret-file with the credentials of the storage, or --no-secret');
  }
  const data = { cloud: readFlagFile('--secret-file', secretFile).toString('base64') };
  const metadata = { name: SECRET, labels: { component: 'velero' } };
  return [{ apiVersion: 'v1', kind: 'Secret', metadata, type: 'Opaque', data }];
}

function locationOf(flags: InstallFlags): Manifest[] {
  const { provider, bucket, prefix, caCert, defaultBackupLocation } = flags;
  if (defaultBackupLocation === false) {
    if (bucket === undefined && provider === undefined) return [];
    throw new UsageError('--no-default-backup-location goes with neither --provider nor --bucket');
  }
  if (provider === undefined) {
    throw new UsageError('give --provider and --bucket, or --no-default-backup-location');
  }
  const kind = provider.replace(/^velero\.io\//, '');
  if (!PROVIDERS.includes(kind) && !provider.includes('/')) {
    throw new UsageError(
      `--provider ${provider} is not known: it is one of ${PROVIDERS.join(', ')}, or the name of a plugin such as example.com/store`,
    );
  }
  if (bucket === undefined || bucket === '') throw new UsageError('give --bucket');
  if (bucket.includes('/')) {
    throw new UsageError(`--bucket ${bucket} has a "/": put what is behind it into --prefix`);
  }
  const storage = {
    bucket,
    ...(prefix !== undefined && { prefix }),
    ...(caCert !== undefined && { caCert: readFlagFile('--cacert', caCert).toString('base64') }),
  };
  const config = configOf(flags.backupLocationConfig);
  const spec = {
    provider,
    default: true,
    objectStorage: storage,
    ...(Object.keys(config).length > 0 && { config }),
  };
  const metadata = { name: 'default', labels: { component: 'velero' } };
  return [{ apiVersion: 'velero.io/v1', kind: 'BackupStorageLocation', metadata, spec }];
}

function configOf(text = ''): Record<string, string> {
  const pairs = text === '' ? [] : text.split(',');
  return Object.fromEntries(
    pairs.map((pair) => {
      const at = pair.indexOf('=');
      if (at > 0) return [pair.slice(0, at).trim(), pair.slice(at + 1).trim()];
      throw new UsageError(`--backup-location-config has "${pair}", which is not key=value`);
    }),
  );
}

function readFlagFile(flag: string, path: string): Buffer {
  if (!existsSync(path)) throw new UsageError(`${flag} ${path}: there is no such file`);
  try {
    return readFileSync(path);
  } catch (error) {
    throw new UsageError(`${flag} ${path}: ${messageOf(error)}`);
  }
}

interface PodTemplate {
  readonly spec: { readonly containers: { image: string; args: string[] }[] };
}

function adapt(workload: Manifest, { image, features }: InstallFlags): void {
  if (image === undefined || image === '') {
    throw new UsageError(
      'give --image: the image that was built from the Dockerfile, as the nodes pull it',
    );
  }
  const { template } = workload.spec as { template: PodTemplate };
  for (const container of template.spec.containers) {
    container.image = image;
    if (features === undefined || workload.kind !== 'Deployment') continue;
    container.args = container.args.filter((each) => !each.startsWith('--features='));
    if (features !== '') container.args.push(`--features=${features}`);
  }
}

interface NamedRule {
  readonly resources: readonly string[];
  resourceNames?: string[];
}

/** Lets the accounts that read credentials of locations also read these Secrets. */
function nameSecrets(role: Manifest, { locationSecrets = '' }: InstallFlags): void {
  const names = locationSecrets.split(',').map((name) => name.trim());
  const added = names.filter((name) => name !== '');
  for (const rule of role.rules as NamedRule[]) {
    if (!rule.resources.includes('secrets') || !rule.resourceNames?.includes(SECRET)) continue;
    rule.resourceNames = [...new Set([...rule.resourceNames, ...added])];
  }
}

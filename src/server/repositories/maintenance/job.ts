import { createHash } from 'node:crypto';
import {
  CodedError,
  type LabelSelectorRequirement,
  lookup,
  requirementsOf,
} from '../../../base/index.ts';
import { podResourcesOf } from '../../../config/index.ts';
import {
  apiVersionOf,
  BACKUP_REPOSITORIES,
  type BackupRepository,
  type Deployment,
  type EnvVar,
  type Job,
  type NewObject,
  NOT_IN_BACKUPS,
  type PodSpec,
  TLS_VOLUME,
  type Toleration,
} from '../../../kube/index.ts';
import type { JobConfig } from './job-config.ts';

/** On Jobs and their pods: which repository (Velero: pkg/repository/maintenance/maintenance.go). */
export const REPOSITORY_LABEL = 'velero.io/repo-name';
/** On Jobs: made here, and so subject to the claim. */
export const JOB_MARK = 'longshore.io/repo-maintenance';
/**
 * Before what went wrong, in the termination message and at the end of the output. Velero's server
 * looks for it.
 */
export const MAINTENANCE_ERROR = 'Repo maintenance error: ';
/** Tell the process in the Job's pod which Job it belongs to. */
export const JOB_NAME_VARIABLE = 'LONGSHORE_JOB_NAME';
export const JOB_UID_VARIABLE = 'LONGSHORE_JOB_UID';
/** On the server's pods: the ServiceAccount of Jobs, which need fewer rights. */
const ACCOUNT_ANNOTATION = 'longshore.io/repo-maintenance-service-account';

const NAME_MAX = 63;
/** What Jobs take over of the server's Deployment (Velero: pkg/util/third_party.go). */
const LABELS = ['azure.workload.identity/use'];
const ANNOTATIONS = ['iam.amazonaws.com/role'];
const TOLERATIONS = ['kubernetes.azure.com/scalesetpriority', 'CriticalAddonsOnly'];
/** The image has none for Windows. */
const NOT_WINDOWS: LabelSelectorRequirement = {
  key: 'kubernetes.io/os',
  operator: 'NotIn',
  values: ['windows'],
};

/**
 * The value of {@link REPOSITORY_LABEL}: a name that is too long for a label is given by its hash.
 */
export const repositoryLabelOf = (name: string): string =>
  name.length <= NAME_MAX ? name : createHash('sha3-224').update(name).digest('hex');

/**
 * As Velero names them, so that whoever looks at them finds them. Where the name of the repository
 * is too long, a hash of its UID is in its place: several may begin in the same millisecond.
 */
export function jobNameOf(
  { name: repository, uid }: { readonly name: string; readonly uid: string },
  nowMs: number,
): string {
  const name = `${repository}-maintain-job-${nowMs}`;
  if (name.length <= NAME_MAX) return name;
  const hash = createHash('sha256').update(uid).digest('hex').slice(0, 10);
  return `repo-maintain-job-${hash}-${nowMs}`;
}

/**
 * Whether a Job was made for this repository, and not for another one, or an earlier one of its
 * name.
 */
export const isJobOf = (
  { metadata: job }: Pick<Job, 'metadata'>,
  { metadata }: Pick<BackupRepository, 'metadata'>,
): boolean => (job.ownerReferences ?? []).some(({ uid }) => uid === metadata.uid);

export interface JobOptions {
  readonly name: string;
  readonly repository: BackupRepository;
  /**
   * Of this server: image, environment, volumes and account of its first container are the Job's.
   */
  readonly deployment: Deployment;
  readonly config: JobConfig;
  readonly command: readonly string[];
  readonly logLevel: string;
  readonly logFormat: string;
}

/** The Job that maintains a repository once. Throws `BAD_CONFIG`. */
export function maintenanceJob(options: JobOptions): NewObject<Job> {
  const { name, repository, deployment, config, command, logLevel, logFormat } = options;
  const { spec, metadata } = repository;
  const { template } = deployment.spec;
  const [server] = template.spec.containers;
  if (!server) {
    const text = `Deployment ${deployment.metadata.name} has no container to make maintenance Jobs after`;
    throw new CodedError('BAD_CONFIG', text);
  }
  const label = { [REPOSITORY_LABEL]: repositoryLabelOf(metadata.name) };
  const resources = podResourcesOf(config.podResources);
  return {
    metadata: {
      name,
      ...(metadata.namespace !== undefined && { namespace: metadata.namespace }),
      labels: { ...label, [JOB_MARK]: 'true', ...NOT_IN_BACKUPS },
      // What is left of a repository goes with it.
      ownerReferences: [
        {
          apiVersion: apiVersionOf(BACKUP_REPOSITORIES),
          kind: BACKUP_REPOSITORIES.kind,
          name: metadata.name,
          uid: metadata.uid,
        },
      ],
    },
    spec: {
      // Tried again when it is due again: the next Job is another one.
      backoffLimit: 0,
      // A pod that cannot be reached has not ended.
      podReplacementPolicy: 'Failed',
      template: {
        metadata: {
          labels: {
            ...(chosen(config.podLabels) ?? picked(template.metadata?.labels, LABELS)),
            ...label,
            ...NOT_IN_BACKUPS,
          },
          annotations:
            chosen(config.podAnnotations) ?? picked(template.metadata?.annotations, ANNOTATIONS),
        },
        spec: {
          ...inherited(template.spec),
          ...accountOf(deployment),
          ...(config.priorityClassName && { priorityClassName: config.priorityClassName }),
          restartPolicy: 'Never',
          affinity: affinityOf(config),
          tolerations: tolerationsOf(template.spec),
          containers: [
            {
              name: 'velero-repo-maintenance-container',
              ...(server.image !== undefined && { image: server.image }),
              imagePullPolicy: 'IfNotPresent',
              command: [...command],
              args: [
                'repo-maintenance',
                `--repo-name=${spec.volumeNamespace}`,
                `--repo-type=${spec.repositoryType ?? 'kopia'}`,
                `--backup-storage-location=${spec.backupStorageLocation}`,
                `--log-level=${logLevel}`,
                `--log-format=${logFormat}`,
              ],
              env: [...(server.env ?? []), ...ownVariables(name)],
              ...(server.envFrom && { envFrom: server.envFrom }),
              ...(server.volumeMounts && { volumeMounts: server.volumeMounts.filter(isForJobs) }),
              ...(server.securityContext && { securityContext: server.securityContext }),
              ...(Object.keys(resources).length > 0 && { resources }),
              terminationMessagePolicy: 'FallbackToLogsOnError',
            },
          ],
        },
      },
    },
  };
}

const ownVariables = (name: string): EnvVar[] => [
  { name: JOB_NAME_VARIABLE, value: name },
  {
    name: JOB_UID_VARIABLE,
    // The older of its two names, which all versions of Kubernetes give to a Job's pods.
    valueFrom: { fieldRef: { fieldPath: "metadata.labels['controller-uid']" } },
  },
];

const isForJobs = ({ name }: { readonly name: string }): boolean => name !== TLS_VOLUME;

function inherited({ volumes, imagePullSecrets, securityContext }: PodSpec): Partial<PodSpec> {
  return {
    ...(volumes && { volumes: volumes.filter(isForJobs) }),
    ...(imagePullSecrets && { imagePullSecrets }),
    ...(securityContext && { securityContext }),
  };
}

function accountOf({ spec: { template } }: Deployment): Partial<PodSpec> {
  const account =
    template.metadata?.annotations?.[ACCOUNT_ANNOTATION] ?? template.spec.serviceAccountName;
  return account === undefined ? {} : { serviceAccountName: account };
}

/** Undefined where nothing was chosen: then it is inherited. */
const chosen = (
  texts: Readonly<Record<string, string>> | null | undefined,
): Record<string, string> | undefined =>
  texts && Object.keys(texts).length > 0 ? { ...texts } : undefined;

const picked = (
  texts: Readonly<Record<string, string>> | undefined,
  keys: readonly string[],
): Record<string, string> =>
  Object.fromEntries(
    keys.flatMap((key) => {
      const value = lookup(texts, key);
      return value === undefined || value === '' ? [] : [[key, value]];
    }),
  );

function tolerationsOf({ tolerations = [] }: PodSpec): Toleration[] {
  return TOLERATIONS.flatMap((key) => tolerations.find((each) => each.key === key) ?? []);
}

function affinityOf({ loadAffinity }: JobConfig): NonNullable<PodSpec['affinity']> {
  const conditions = requirementsOf(loadAffinity?.[0]?.nodeSelector ?? {});
  const terms = [{ matchExpressions: [...conditions, NOT_WINDOWS] }];
  return {
    nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: terms } },
  };
}

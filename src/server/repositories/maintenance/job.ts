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

/** Label of Jobs and their pods (Velero: pkg/repository/maintenance/maintenance.go). */
export const REPOSITORY_LABEL = 'velero.io/repo-name';
/** Label of Jobs that this project created. They need the claim. */
export const JOB_MARK = 'longshore.io/repo-maintenance';
/** Prefix of errors in termination message and output. Velero's server searches for it. */
export const MAINTENANCE_ERROR = 'Repo maintenance error: ';
/** Variables that name the Job to the process in its pod. */
export const JOB_NAME_VARIABLE = 'LONGSHORE_JOB_NAME';
export const JOB_UID_VARIABLE = 'LONGSHORE_JOB_UID';
/** Annotation on the server's pods: the ServiceAccount for Jobs, which need fewer permissions. */
const ACCOUNT_ANNOTATION = 'longshore.io/repo-maintenance-service-account';

const NAME_MAX = 63;
/** Fields that Jobs copy from the server's Deployment (Velero: pkg/util/third_party.go). */
const LABELS = ['azure.workload.identity/use'];
const ANNOTATIONS = ['iam.amazonaws.com/role'];
const TOLERATIONS = ['kubernetes.azure.com/scalesetpriority', 'CriticalAddonsOnly'];
/** There is no image for Windows. */
const NOT_WINDOWS: LabelSelectorRequirement = {
  key: 'kubernetes.io/os',
  operator: 'NotIn',
  values: ['windows'],
};

/** The value of {@link REPOSITORY_LABEL}. A name that is too long is replaced by its hash. */
export const repositoryLabelOf = (name: string): string =>
  name.length <= NAME_MAX ? name : createHash('sha3-224').update(name).digest('hex');

/**
 * The name of a Job, as in Velero. A long repository name is replaced by a hash of its UID, because
 * several Jobs may begin in the same millisecond.
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

/** Whether a Job belongs to this very repository, by its owner reference. */
export const isJobOf = (
  { metadata: job }: Pick<Job, 'metadata'>,
  { metadata }: Pick<BackupRepository, 'metadata'>,
): boolean => (job.ownerReferences ?? []).some(({ uid }) => uid === metadata.uid);

export interface JobOptions {
  readonly name: string;
  readonly repository: BackupRepository;
  /** This server's Deployment. Its first container is the template of the Jobs. */
  readonly deployment: Deployment;
  readonly config: JobConfig;
  readonly command: readonly string[];
  readonly logLevel: string;
  readonly logFormat: string;
}

/** Builds the Job for one maintenance run. Throws `BAD_CONFIG`. */
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
      // Kubernetes deletes the Job with its repository.
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
      // The next due time creates a new Job.
      backoffLimit: 0,
      // An unreachable pod has not ended.
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
    // The older of two label names. All versions of Kubernetes set it.
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

/** Undefined if nothing is set: then the server's values are inherited. */
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

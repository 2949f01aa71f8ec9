import { isCode, namedFirst } from '../base/index.ts';
import {
  BACKUP_REPOSITORIES,
  type BackupRepository,
  type KubeClient,
  type Lease,
  LEASES,
  type Pod,
  PODS,
  SERVER_LEASE,
} from '../kube/index.ts';
import { verificationOf } from '../repository-access/index.ts';

/** Used if the Lease has no duration (Kubernetes' own default). */
const LEASE_SECONDS = 15;
/** Repositories named in a sentence. Our choice. */
const NAMED_MAX = 3;

/**
 * Sentences about the leader, the standby servers, repositories that are not ready, and
 * verifications. Skips missing objects, and objects that this user may not read.
 */
export async function describeServer(client: KubeClient, namespace: string): Promise<string[]> {
  const [lease, repositories] = await Promise.all([
    unlessRefused(client.find(LEASES, { namespace, name: SERVER_LEASE })),
    unlessRefused(client.list(BACKUP_REPOSITORIES, { namespace })),
  ]);
  const lines: string[] = [];
  if (lease) lines.push(await leaderLine(client, namespace, lease));
  const known = (repositories ?? []).filter(({ spec }) => spec.repositoryType === 'kopia');
  if (known.length > 0) lines.push(repositoriesLine(known), ...verifiedLines(known));
  return lines;
}

async function leaderLine(client: KubeClient, namespace: string, lease: Lease): Promise<string> {
  const { holderIdentity, renewTime, acquireTime, leaseDurationSeconds } = lease.spec ?? {};
  const holder = holderIdentity ?? '';
  const name = holder.slice(0, Math.max(0, holder.lastIndexOf('_')));
  const sinceMs = Date.parse(renewTime ?? '');
  const ageSeconds = Number(client.clock.nowNs() / 1_000_000n - BigInt(sinceMs || 0)) / 1000;
  const isOver = holder === '' || !(ageSeconds <= (leaseDurationSeconds ?? LEASE_SECONDS));
  if (isOver) {
    const last = name === '' ? '' : ` (the last one was ${name})`;
    return `server: none leads since ${timeText(renewTime)}${last}, so no repository becomes ready and none is maintained`;
  }
  const others = await standbysOf(client, namespace, name);
  const more =
    others === undefined ? '' : `; ${others} more ${others === 1 ? 'is' : 'are'} ready to`;
  return `server: ${name} leads since ${timeText(acquireTime)}${more}`;
}

/** Pods of the same Deployment; undefined if the leader's pod is not visible. */
async function standbysOf(
  client: KubeClient,
  namespace: string,
  leader: string,
): Promise<number | undefined> {
  const pod = await unlessRefused(client.find(PODS, { namespace, name: leader }));
  const label = pod?.metadata.labels?.name;
  if (label === undefined) return undefined;
  const pods = await unlessRefused(
    client.list(PODS, { namespace, labelSelector: `name=${label}` }),
  );
  return pods?.filter((each) => each.metadata.name !== leader && isReady(each)).length;
}

const isReady = ({ status }: Pod): boolean =>
  (status?.conditions ?? []).some(({ type, status: is }) => type === 'Ready' && is === 'True');

function repositoriesLine(all: readonly BackupRepository[]): string {
  const others = all.filter(({ status }) => status?.phase !== 'Ready');
  const count = `repositories: ${all.length - others.length} of ${all.length} are ready`;
  if (others.length === 0) return count;
  const nameOf = ({ metadata, status }: BackupRepository): string => {
    const why = status?.message ?? '';
    return `${metadata.name}${why === '' ? '' : `: ${why}`}`;
  };
  return `${count}; not ready: ${namedFirst(others, NAMED_MAX, nameOf, '; ')}`;
}

/** Empty if no repository was ever verified. */
function verifiedLines(all: readonly BackupRepository[]): string[] {
  const verified = all.flatMap((repository) => {
    const noted = verificationOf(repository);
    return noted ? [{ name: repository.metadata.name, ...noted }] : [];
  });
  verified.sort((a, b) => Date.parse(a.time) - Date.parse(b.time));
  const [oldest] = verified;
  if (!oldest) return [];
  const damaged = verified.reduce((sum, { damagedContents }) => sum + damagedContents, 0);
  const never = all.length - verified.length;
  return [
    `verified: ${verified.length} of ${all.length} repositories, ${oldest.name} the longest ago, at ${timeText(oldest.time)}; damaged contents: ${damaged}${never > 0 ? `; never verified: ${never}` : ''}`,
  ];
}

const timeText = (text: string | null | undefined): string =>
  text === undefined || text === null ? 'some time' : text.replace(/\.\d+Z$/, 'Z');

async function unlessRefused<T>(answer: Promise<T>): Promise<T | undefined> {
  try {
    return await answer;
  } catch (error) {
    if (isCode(error, 'KUBE_FORBIDDEN', 'KUBE_NOT_FOUND')) return undefined;
    throw error;
  }
}

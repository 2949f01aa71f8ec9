import { define, goJson, isCode, lookup, parseJsonLossless } from '../../base/index.ts';
import type { ManifestId, Repository } from '../../repository/index.ts';
import type { Snapshot } from '../snapshot-manifest.ts';
import type { SourceInfo } from '../source.ts';
import {
  mergeLevels,
  mergePolicies,
  parsePolicy,
  type Policy,
  policyLabels,
  policySchema,
  type PolicyTarget,
  type StoredPolicy,
  targetOf,
} from './policy.ts';

export interface ReadablePolicies {
  readonly policies: StoredPolicy[];
  /** `DAMAGED_POLICY` for each unreadable policy. The message names it. */
  readonly damaged: { readonly target: PolicyTarget; readonly error: Error }[];
}

/** Readable and damaged policies. A damaged policy affects only its targets. */
export async function listPolicies(repository: Repository): Promise<ReadablePolicies> {
  const found: ReadablePolicies = { policies: [], damaged: [] };
  for (const manifest of await repository.manifests.find({ type: 'policy' })) {
    try {
      found.policies.push(parsePolicy(manifest));
    } catch (error) {
      if (!isCode(error, 'DAMAGED_POLICY')) throw error;
      found.damaged.push({ target: targetOf(manifest), error });
    }
  }
  return found;
}

/** The settings of exactly this target, or undefined. */
export async function getDefinedPolicy(
  repository: Repository,
  target: PolicyTarget,
): Promise<StoredPolicy | undefined> {
  const found = await repository.manifests.find(policyLabels(target));
  const newest = found.at(-1);
  return newest && parsePolicy(newest);
}

/** Replaces the settings of a target. Durable after a flush. */
export async function putPolicy(
  repository: Repository,
  target: PolicyTarget,
  policy: Policy,
): Promise<ManifestId> {
  const labels = policyLabels(target);
  for (const { id } of await repository.manifests.find(labels)) repository.manifests.delete(id);
  const normalized = policySchema.parse(policy);
  return repository.manifests.put(labels, parseJsonLossless(goJson(inKopiaOrder(normalized))));
}

/** Removes a target's settings, even if damaged. Durable after a flush. False if none. */
export async function deletePolicy(
  { manifests }: Repository,
  target: PolicyTarget,
): Promise<boolean> {
  const found = await manifests.find(policyLabels(target));
  for (const { id } of found) manifests.delete(id);
  return found.length > 0;
}

const SECTIONS = Object.keys(policySchema.shape);

function inKopiaOrder(policy: Policy): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  for (const section of SECTIONS) {
    const value = lookup(policy as Record<string, unknown>, section);
    if (value !== undefined) define(fields, section, value);
  }
  return { ...fields, ...policy };
}

/** The effective settings of a source: at its root and below. */
export class PolicyTree {
  readonly #root: Policy;
  readonly #below: ReadonlyMap<string, Policy>;

  /** `below`: settings of subdirectories, by path from the root without a leading slash. */
  constructor(root: Policy, below: ReadonlyMap<string, Policy> = new Map()) {
    this.#root = root;
    this.#below = below;
  }

  /** Plain values that can be sent to another thread. */
  get definitions(): { readonly root: Policy; readonly below: ReadonlyMap<string, Policy> } {
    return { root: this.#root, below: this.#below };
  }

  get root(): Policy {
    return this.#root;
  }

  /** A directory's own settings, whose rules apply below it. */
  definedAt(relativePath: string): Policy | undefined {
    return relativePath === '' ? this.#root : this.#below.get(relativePath);
  }

  /** Splitters named by any directory's settings. */
  splitterNames(): string[] {
    const all = [this.#root, ...this.#below.values()];
    return all.flatMap(({ splitter }) => splitter.algorithm ?? []).filter((name) => name !== '');
  }

  /** Compressions of files or metadata named by any directory's settings. */
  compressorNames(): string[] {
    const all = [this.#root, ...this.#below.values()];
    return all
      .flatMap(({ compression, metadataCompression }) => [compression, metadataCompression])
      .flatMap(({ compressorName }) => compressorName ?? []);
  }

  /** Names of policy actions: commands that Kopia runs before or after a backup or a directory. */
  actionNames(): string[] {
    const all = [this.#root, ...this.#below.values()];
    return all
      .flatMap(({ actions }) => Object.entries(actions))
      .flatMap(([name, action]) => (action === undefined || action === null ? [] : name));
  }

  /** Effective settings in a directory. */
  at(relativePath: string): Policy {
    if (this.#below.size === 0 || relativePath === '') return this.#root;
    let policy = this.#root;
    const parts = relativePath.split('/');
    for (let depth = 1; depth <= parts.length; depth++) {
      const defined = this.#below.get(parts.slice(0, depth).join('/'));
      if (defined) policy = defined.noParent ? defined : mergePolicies(defined, policy);
    }
    return policy;
  }
}

/**
 * Effective policies of a source, from its path and parents to user, host and global. Kopia's
 * defaults come last. Throws `DAMAGED_POLICY` if one of them or of a directory below is
 * unreadable.
 */
export async function loadPolicyTree(
  repository: Repository,
  source: SourceInfo,
): Promise<PolicyTree> {
  const found = await listPolicies(repository);
  return new PolicyTree(effectivePolicies(found)(source), definedBelow(found, source));
}

/** Tag of data mover snapshots: the rules that left paths out, as JSON. */
export const EXCLUDED_TAG = 'longshore-excluded-paths';

/** The rules that left paths out of a snapshot. Empty for a damaged tag. */
export function excludesOfSnapshot({ tags }: Pick<Snapshot, 'tags'>): string[] {
  try {
    const rules: unknown = JSON.parse(tags?.[EXCLUDED_TAG] ?? '[]');
    return Array.isArray(rules) ? rules.filter((rule) => typeof rule === 'string') : [];
  } catch {
    return [];
  }
}

/**
 * The policies with the rules of the snapshot's own backup. A data mover rewrites its source's
 * policy for each backup, so only the tag has the rules of an earlier backup.
 */
export async function loadPoliciesOf(
  repository: Repository,
  snapshot: Pick<Snapshot, 'source' | 'tags'>,
): Promise<PolicyTree> {
  const tree = await loadPolicyTree(repository, snapshot.source);
  const ignore = excludesOfSnapshot(snapshot);
  if (ignore.length === 0) return tree;
  const { root, below } = tree.definitions;
  return new PolicyTree({ ...root, files: { ...root.files, ignore } }, below);
}

/** Returns a function for any source's root policy, which throws `DAMAGED_POLICY`. */
export function effectivePolicies({
  policies,
  damaged,
}: ReadablePolicies): (source: SourceInfo) => Policy {
  // The later of two policies for a target wins.
  const byTarget = new Map(policies.map(({ target, policy }) => [keyOf(target), policy]));
  const errors = new Map(damaged.map(({ target, error }) => [keyOf(target), error]));
  return (source) => {
    const levels: Policy[] = [];
    for (const target of inheritance(source)) {
      const error = errors.get(keyOf(target));
      if (error) throw error;
      const policy = byTarget.get(keyOf(target));
      if (policy) levels.push(policy);
      if (policy?.noParent) break;
    }
    return mergeLevels(levels, byTarget.get(keyOf(source)));
  };
}

const keyOf = ({ host, userName, path }: PolicyTarget): string =>
  JSON.stringify([host, userName, path]);

function inheritance({ host, userName, path }: SourceInfo): PolicyTarget[] {
  const paths: string[] = [];
  for (let current = path; ;) {
    paths.push(current);
    const slash = current.lastIndexOf('/');
    const parent = slash > 0 ? current.slice(0, slash) : slash === 0 ? '/' : '';
    if (parent === '' || parent === current) break;
    current = parent;
  }
  return [
    ...paths.map((each) => ({ host, userName, path: each })),
    { host, userName, path: '' },
    { host, userName: '', path: '' },
    { host: '', userName: '', path: '' },
  ];
}

function definedBelow(
  { policies, damaged }: ReadablePolicies,
  source: SourceInfo,
): Map<string, Policy> {
  const prefix = source.path.endsWith('/') ? source.path : `${source.path}/`;
  const isBelow = ({ target: { host, userName, path } }: { target: PolicyTarget }): boolean =>
    host === source.host &&
    userName === source.userName &&
    path.startsWith(prefix) &&
    path !== source.path;
  const unreadable = damaged.find(isBelow);
  if (unreadable) throw unreadable.error;
  return new Map(
    policies
      .filter(isBelow)
      .map(({ target, policy }) => [target.path.slice(prefix.length), policy]),
  );
}

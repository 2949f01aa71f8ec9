import { CodedError, isCode, mapLimited, messageOf } from '../../base/index.ts';
import type { KubeObject } from '../api/core.ts';
import type { Resource } from '../api/resources.ts';
import type { CallOptions, KubeClient } from '../client/client.ts';
import { isStoreAway } from '../client/error-meaning.ts';
import { isPassing } from '../client/errors.ts';

/** A resource that a server reports. */
export interface ServedResource extends Resource<KubeObject> {
  /** In lower case. If the server sends none, the kind. */
  readonly singular: string;
  readonly shortNames: readonly string[];
  readonly verbs: readonly string[];
}

/** The resources of one version of a group. Subresources are left out. */
export interface ServedVersion {
  readonly group: string;
  readonly version: string;
  readonly resources: readonly ServedResource[];
}

export interface ServedGroup {
  /** `''` for the core group. */
  readonly name: string;
  readonly preferredVersion: string;
  /** In the order of the server, without versions that failed. */
  readonly versions: readonly ServedVersion[];
}

/** A registered version of a group whose server does not answer. */
export interface DiscoveryFailure {
  /** For example `metrics.k8s.io/v1beta1`; `/apis` if the list of all groups is refused. */
  readonly groupVersion: string;
  readonly reason: string;
}

export interface Served {
  /** The core group first, then in the order of the server. */
  readonly groups: readonly ServedGroup[];
  readonly failures: readonly DiscoveryFailure[];
}

/** All groups in one answer (KEP-3352). Servers older than 1.26 send the plain list. */
const AGGREGATED = ['v2', 'v2beta1']
  .map((version) => `application/json;g=apidiscovery.k8s.io;v=${version};as=APIGroupDiscoveryList`)
  .concat('application/json')
  .join(',');
/** Concurrent requests, one per group version. Our choice: old servers have about 40. */
const REQUESTS_MAX = 8;

interface AggregatedList {
  readonly kind?: string;
  readonly items?: readonly AggregatedGroup[] | null;
}

interface AggregatedGroup {
  readonly metadata?: { readonly name?: string };
  readonly versions?: readonly AggregatedVersion[] | null;
}

interface AggregatedVersion {
  readonly version?: string;
  readonly freshness?: string;
  readonly resources?: readonly AggregatedResource[] | null;
}

interface AggregatedResource {
  readonly resource?: string;
  readonly responseKind?: { readonly kind?: string } | null;
  readonly scope?: string;
  readonly singularResource?: string;
  readonly verbs?: readonly string[] | null;
  readonly shortNames?: readonly string[] | null;
}

interface PlainGroup {
  readonly name?: string;
  readonly versions?: readonly { readonly version?: string }[] | null;
  readonly preferredVersion?: { readonly version?: string };
}

interface PlainLists {
  readonly versions?: readonly string[] | null;
  readonly groups?: readonly PlainGroup[] | null;
}

interface PlainResources {
  readonly resources?: readonly PlainResource[] | null;
}

interface PlainResource {
  readonly name?: string;
  readonly singularName?: string;
  readonly namespaced?: boolean;
  readonly kind?: string;
  readonly verbs?: readonly string[] | null;
  readonly shortNames?: readonly string[] | null;
}

/**
 * Loads all resources that a server serves. A group whose own server does not answer is a failure
 * in the result. Throws the `KUBE_*` errors if the API server itself does not answer.
 */
export async function loadServed(
  client: Pick<KubeClient, 'raw'>,
  options: CallOptions = {},
): Promise<Served> {
  const failures: DiscoveryFailure[] = [];
  const core = await loadRoot(client, '/api', failures, options);
  const named = await loadRoot(client, '/apis', failures, options);
  return { groups: [...core, ...named], failures };
}

async function loadRoot(
  client: Pick<KubeClient, 'raw'>,
  path: string,
  failures: DiscoveryFailure[],
  options: CallOptions,
): Promise<ServedGroup[]> {
  const answer = (await client
    .raw({ method: 'GET', path, accept: AGGREGATED, signal: options.signal })
    .catch((error: unknown) => {
      // client-go (discovery/discovery_client.go) skips forbidden lists silently.
      if (!isCode(error, 'KUBE_NOT_FOUND', 'KUBE_FORBIDDEN')) throw error;
      failures.push({ groupVersion: path, reason: messageOf(error) });
      return {};
    })) as AggregatedList & PlainLists;
  if (answer.kind === 'APIGroupDiscoveryList') return aggregatedGroups(answer, failures);
  const groups = [
    ...(answer.versions?.length ? [coreGroup(answer.versions)] : []),
    ...(answer.groups ?? []),
  ];
  return plainGroups(client, groups, failures, options);
}

function aggregatedGroups(list: AggregatedList, failures: DiscoveryFailure[]): ServedGroup[] {
  return (list.items ?? []).map((item) => {
    const name = item.metadata?.name ?? '';
    const versions = (item.versions ?? []).flatMap((said) => {
      const { version = '', freshness } = said;
      // The aggregator repeats an old answer, which may be empty. client-go ignores it too.
      if (freshness === 'Stale') {
        const reason = 'the server of this group does not answer';
        failures.push({ groupVersion: groupVersionOf(name, version), reason });
        return [];
      }
      const resources = (said.resources ?? []).flatMap((each) =>
        served(name, version, {
          plural: each.resource,
          kind: each.responseKind?.kind,
          namespaced: each.scope === 'Namespaced',
          singular: each.singularResource,
          verbs: each.verbs,
          shortNames: each.shortNames,
        }),
      );
      return [{ group: name, version, resources }];
    });
    // The API puts the preferred version first.
    return { name, preferredVersion: item.versions?.[0]?.version ?? '', versions };
  });
}

const coreGroup = (versions: readonly string[]): PlainGroup => ({
  name: '',
  versions: versions.map((version) => ({ version })),
  preferredVersion: { version: versions[0] ?? '' },
});

async function plainGroups(
  client: Pick<KubeClient, 'raw'>,
  groups: readonly PlainGroup[],
  failures: DiscoveryFailure[],
  options: CallOptions,
): Promise<ServedGroup[]> {
  const asked = groups.flatMap(({ name: group = '', versions }) =>
    (versions ?? []).map(({ version = '' }) => ({ group, version })),
  );
  const answers = await mapLimited(asked, REQUESTS_MAX, async ({ group, version }) => {
    const path = group === '' ? `/api/${version}` : `/apis/${group}/${version}`;
    try {
      const { resources } = (await client.raw({
        method: 'GET',
        path,
        signal: options.signal,
      })) as PlainResources;
      const found = (resources ?? []).flatMap((each) =>
        served(group, version, {
          plural: each.name,
          kind: each.kind,
          namespaced: each.namespaced === true,
          singular: each.singularName,
          verbs: each.verbs,
          shortNames: each.shortNames,
        }),
      );
      return { group, version, resources: found };
    } catch (error) {
      options.signal?.throwIfAborted();
      if (isOfServer(error, group)) throw error;
      const reason = error instanceof Error ? error.message : String(error);
      failures.push({ groupVersion: groupVersionOf(group, version), reason });
      return undefined;
    }
  });
  return groups.map(({ name = '', versions, preferredVersion }) => ({
    name,
    preferredVersion: preferredVersion?.version ?? versions?.[0]?.version ?? '',
    versions: answers.filter(
      (answer) => answer !== undefined && answer.group === name,
    ) as ServedVersion[],
  }));
}

/**
 * Whether the API server itself does not answer: it cannot be reached, is busy, or lost its store.
 * If this counted as a group that is away, a backup would lack all resources of the group.
 */
const isOfServer = (error: unknown, group: string): boolean =>
  isPassing(error) &&
  (group === '' ||
    isCode(error, 'KUBE_THROTTLED') ||
    isStoreAway(error) ||
    !(error instanceof CodedError && error.facts.httpStatus !== undefined));

const groupVersionOf = (group: string, version: string): string =>
  group === '' ? version : `${group}/${version}`;

interface Said {
  readonly plural: string | undefined;
  readonly kind: string | undefined;
  readonly namespaced: boolean;
  readonly singular: string | undefined;
  readonly verbs: readonly string[] | null | undefined;
  readonly shortNames: readonly string[] | null | undefined;
}

/** Empty for a subresource, or a resource without a name. */
function served(group: string, version: string, said: Said): ServedResource[] {
  const { plural = '', kind = '', namespaced, singular = '', verbs, shortNames } = said;
  if (plural === '' || kind === '' || plural.includes('/')) return [];
  return [
    {
      group,
      version,
      kind,
      plural,
      namespaced,
      singular: singular === '' ? kind.toLowerCase() : singular,
      verbs: verbs ?? [],
      shortNames: shortNames ?? [],
    },
  ];
}

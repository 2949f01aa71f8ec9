import * as fs from 'node:fs';
import { delimiter, dirname, join, resolve } from 'node:path';
import { parse } from 'yaml';
import { z } from 'zod';
import { CodedError, lookup, messageOf, systemCode } from '../../base/index.ts';

/** client-go: clientcmd/api/v1, types.go. Missing, null and empty keys mean the same. */
const text = z
  .string()
  .nullish()
  .transform((value) => (value === '' ? undefined : (value ?? undefined)));
const flag = z
  .boolean()
  .nullish()
  .transform((value) => value ?? false);
const texts = z
  .array(z.string())
  .nullish()
  .transform((value) => value ?? []);

const CLUSTER = z.object({
  server: text,
  'tls-server-name': text,
  'insecure-skip-tls-verify': flag,
  'certificate-authority': text,
  'certificate-authority-data': text,
  'proxy-url': text,
  'disable-compression': flag,
  extensions: z.array(z.object({ name: text, extension: z.unknown() })).nullish(),
});

const EXEC_VERSIONS = [
  'client.authentication.k8s.io/v1',
  'client.authentication.k8s.io/v1beta1',
] as const;
const EXEC = z.object({
  command: z.string({ error: 'the exec plugin has no command' }).min(1),
  args: texts,
  env: z.array(z.object({ name: z.string(), value: z.string() })).nullish(),
  apiVersion: z.enum(EXEC_VERSIONS, {
    error: ({ input }) =>
      `${JSON.stringify(input) ?? 'nothing'} is not supported; use ${EXEC_VERSIONS.join(' or ')}`,
  }),
  installHint: text,
  provideClusterInfo: flag,
  interactiveMode: z.enum(['Never', 'IfAvailable', 'Always']).nullish(),
});

const USER = z.object({
  'client-certificate': text,
  'client-certificate-data': text,
  'client-key': text,
  'client-key-data': text,
  token: text,
  tokenFile: text,
  username: text,
  password: text,
  as: text,
  'as-uid': text,
  'as-groups': texts,
  'as-user-extra': z.record(z.string(), texts).nullish(),
  exec: EXEC.nullish(),
  'auth-provider': z
    .object({ name: z.string(), config: z.record(z.string(), z.string()).nullish() })
    .nullish(),
});
const CONTEXT = z.object({ cluster: text, user: text });

export type Cluster = z.output<typeof CLUSTER> & { readonly server: string };
export type User = z.output<typeof USER>;
export type ExecPlugin = z.output<typeof EXEC>;

/** The address of an API server, and the user. */
export interface Access {
  readonly cluster: Cluster;
  readonly user: User;
}

interface Entry {
  readonly name: string;
  readonly value: unknown;
  /** Relative paths in the entry start here. */
  readonly directory: string;
}
interface Merged {
  readonly where: string;
  currentContext: string | undefined;
  readonly clusters: Entry[];
  readonly users: Entry[];
  readonly contexts: Entry[];
}

const NOTHING_CONFIGURED =
  'no Kubernetes cluster is configured: set KUBECONFIG, give a kubeconfig, or run in a pod';
/** Our choice: a message names only a few. */
const NAMES_MAX = 10;
const ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount';

const refused = (message: string, cause?: unknown): CodedError =>
  new CodedError('NO_CLUSTER', message, { cause });

// eslint-disable-next-line no-restricted-properties -- kubectl goes by the same variables
const variables = (): NodeJS.ProcessEnv => process.env;

/** Default: KUBECONFIG, ~/.kube/config, the pod's service account. Throws `NO_CLUSTER`. */
export function accessOf(kubeconfig: string | undefined, context: string | undefined): Access {
  const { KUBECONFIG: list = '', HOME: home = '' } = variables();
  const listed = list.split(delimiter).filter((file) => file !== '');
  const own = join(home, '.kube', 'config');
  if (kubeconfig !== undefined) return chosenFrom(merged([kubeconfig]), context);
  if (listed.length > 0) return chosenFrom(merged(listed), context);
  if (home !== '' && fs.existsSync(own)) return chosenFrom(merged([own]), context);
  return accessOfPod();
}

/** client-go: rest/config.go, InClusterConfig. */
function accessOfPod(): Access {
  const { KUBERNETES_SERVICE_HOST: host = '', KUBERNETES_SERVICE_PORT: port = '' } = variables();
  const tokenFile = join(ACCOUNT, 'token');
  if (host === '' || port === '' || !fs.existsSync(tokenFile)) throw refused(NOTHING_CONFIGURED);
  const server = `https://${host.includes(':') ? `[${host}]` : host}:${port}`;
  const cluster = CLUSTER.parse({ server, 'certificate-authority': join(ACCOUNT, 'ca.crt') });
  return { cluster: { ...cluster, server }, user: USER.parse({ tokenFile }) };
}

/** client-go: clientcmd/loader.go, Load. The first file with an entry wins. */
function merged(files: readonly string[]): Merged {
  const lists = { clusters: [] as Entry[], users: [] as Entry[], contexts: [] as Entry[] };
  let currentContext: string | undefined;
  const read: string[] = [];
  let missing: unknown;
  for (const file of files) {
    try {
      const content = fileOf(fs.readFileSync(file, 'utf8'));
      read.push(file);
      const current = content['current-context'];
      // YAML allows any value here.
      if (typeof current === 'string' && current !== '') currentContext ??= current;
      const directory = dirname(resolve(file));
      for (const [kind, entries] of Object.entries(lists)) {
        for (const { name, value } of entriesOf(content, kind)) {
          if (!entries.some((each) => each.name === name)) entries.push({ name, value, directory });
        }
      }
    } catch (cause) {
      missing ??= cause;
      if (systemCode(cause) === 'ENOENT' && files.length > 1) continue;
      throw refused(`cannot read the kubeconfig ${file}: ${messageOf(cause)}`, cause);
    }
  }
  if (read.length === 0) {
    const names = files.join(', ');
    throw refused(`cannot read the kubeconfig ${names}: ${messageOf(missing)}`, missing);
  }
  const where = read.length > 1 ? 'KUBECONFIG' : `kubeconfig ${read.join('')}`;
  return { where, currentContext, ...lists };
}

function fileOf(content: string): Record<string, unknown> {
  const value: unknown = parse(content, { logLevel: 'error' });
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

function entriesOf(
  file: Record<string, unknown>,
  kind: string,
): { name: string; value: unknown }[] {
  const list = lookup(file, kind);
  if (!Array.isArray(list)) return [];
  return (list as (Record<string, unknown> | null)[]).flatMap((entry) => {
    const name = entry?.name;
    return typeof name === 'string'
      ? [{ name, value: lookup(entry, kind.slice(0, -1)) ?? {} }]
      : [];
  });
}

function chosenFrom(config: Merged, wanted: string | undefined): Access {
  const { where, contexts, clusters, users } = config;
  if (clusters.length === 0) throw refused(`${where} names no cluster: it may be another file`);
  const names = contexts.map((context) => context.name);
  const more = names.length > NAMES_MAX ? `, and ${names.length - NAMES_MAX} more` : '';
  const has = names.length === 0 ? 'none' : `${names.slice(0, NAMES_MAX).join(', ')}${more}`;
  const name = wanted ?? config.currentContext;
  if (name === undefined || name === '') {
    throw refused(`${where} has no current context; name one of these: ${has}`);
  }
  const found = contexts.find((context) => context.name === name);
  if (!found) throw refused(`${where} has no context "${name}"; it has ${has}`);
  const context = checked(CONTEXT, found, `context "${name}" of ${where}`);
  const fault = (kind: string, entry: string): CodedError =>
    refused(`context "${name}" of ${where} names the ${kind} "${entry}", which is not in it`);
  if (context.cluster === undefined) {
    throw refused(`context "${name}" of ${where} names no cluster`);
  }
  const cluster = clusters.find((each) => each.name === context.cluster);
  if (!cluster) throw fault('cluster', context.cluster);
  const user = users.find((each) => each.name === context.user);
  if (!user && context.user !== undefined) throw fault('user', context.user);
  return {
    cluster: clusterOf(cluster, `cluster "${cluster.name}" of ${where}`),
    user: user ? userOf(user, `user "${user.name}" of ${where}`) : USER.parse({}),
  };
}

function checked<T>(schema: z.ZodType<T>, { value }: Entry, which: string): T {
  const { data, error } = schema.safeParse(value);
  if (!error) return data;
  const [issue] = error.issues;
  const place = (issue?.path ?? []).join('.');
  throw refused(`${which} is wrong: ${place}${place && ': '}${issue?.message ?? error.message}`);
}

function clusterOf(entry: Entry, which: string): Cluster {
  const cluster = checked(CLUSTER, entry, which);
  if (cluster.server === undefined) throw refused(`${which} has no server`);
  // client-go: rest/url_utils.go, DefaultServerURL.
  const { server: said, 'insecure-skip-tls-verify': isInsecure } = cluster;
  const authority = cluster['certificate-authority'] ?? cluster['certificate-authority-data'];
  const isTls = isInsecure || authority !== undefined;
  const server = said.includes('://') ? said : `${isTls ? 'https' : 'http'}://${said}`;
  if (!URL.canParse(server) || !/^https?:/.test(server)) {
    throw refused(`${which} has a server that is no URL of http or https: ${server}`);
  }
  const file = inDirectory(entry, cluster['certificate-authority']);
  return { ...cluster, server, 'certificate-authority': file };
}

/** client-go: clientcmd/validation.go, validateAuthInfo. */
function userOf(entry: Entry, which: string): User {
  const user = checked(USER, entry, which);
  const { exec, 'auth-provider': provider } = user;
  // client-node writes kubeconfigs with this name.
  const tokenFile = user.tokenFile ?? provider?.config?.tokenFile;
  if (provider && provider.name !== 'oidc' && tokenFile === undefined) {
    throw refused(
      `${which} uses the auth-provider "${provider.name}", which does not exist (any more): ${hintFor(provider.name)}`,
    );
  }
  if (exec && provider) throw refused(`${which} has both an auth-provider and an exec plugin`);
  const has = (name: 'client-certificate' | 'client-key'): boolean =>
    (user[name] ?? user[`${name}-data`]) !== undefined;
  if (has('client-certificate') !== has('client-key')) {
    throw refused(`${which} needs both a client-certificate and a client-key`);
  }
  const { as, 'as-uid': uid, 'as-groups': groups, 'as-user-extra': extra } = user;
  const isMore = uid !== undefined || groups.length > 0 || Object.keys(extra ?? {}).length > 0;
  if (as === undefined && isMore) {
    throw refused(`${which} impersonates a uid, groups or extra fields, but no user: set "as"`);
  }
  return {
    ...user,
    'client-certificate': inDirectory(entry, user['client-certificate']),
    'client-key': inDirectory(entry, user['client-key']),
    tokenFile: inDirectory(entry, tokenFile),
    // A name without a slash is searched in PATH.
    exec: exec?.command.includes('/')
      ? { ...exec, command: resolve(entry.directory, exec.command) }
      : exec,
  };
}

function hintFor(provider: string): string {
  if (provider === 'gcp') return 'use the exec plugin gke-gcloud-auth-plugin';
  if (provider === 'azure') return 'use the exec plugin kubelogin';
  return 'use an exec plugin';
}

const inDirectory = ({ directory }: Entry, file: string | undefined): string | undefined =>
  file === undefined ? undefined : resolve(directory, file);

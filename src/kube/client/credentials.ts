import { readFile } from 'node:fs/promises';
import type * as http from 'node:http';
import type * as https from 'node:https';
import type { OpenIDConnectAuth } from '@kubernetes/client-node/dist/oidc_auth.js';
import { type Clock, CodedError, messageOf, redactAndCut } from '../../base/index.ts';
import { credentialOf, type ExecCredential } from './exec-plugin.ts';
import type { Access, User } from './kubeconfig.ts';

/** TLS options and headers that authenticate a connection and its requests. */
export interface Login {
  readonly tls: https.AgentOptions;
  readonly headers: http.OutgoingHttpHeaders;
  /** Time of expiry, by the clock of the API server. */
  readonly expiresNs: bigint | undefined;
}

const MILLISECOND_NS = 1_000_000n;
/** client-go: clientcmd. The cluster extension that the exec plugin gets as `config`. */
const EXEC_EXTENSION = 'client.authentication.k8s.io/exec';

/**
 * The credentials of a kubeconfig. Files are read each time, because other programs replace them.
 */
export class Credentials {
  readonly #access: Access;
  readonly #clock: Clock;
  #exec: ExecCredential | undefined;
  #oidc: OpenIDConnectAuth | undefined;

  constructor(access: Access, clock: Clock) {
    this.#access = access;
    this.#clock = clock;
  }

  /** Drops the answer of an exec plugin. The credentials may be revoked long before they expire. */
  forget(): void {
    this.#exec = undefined;
  }

  /** Throws `KUBE_UNAVAILABLE` with the name of the failing file or plugin. */
  async login(): Promise<Login> {
    const { cluster, user } = this.#access;
    const isTls = cluster.server.startsWith('https:');
    const isInsecure = cluster['insecure-skip-tls-verify'];
    const servername = cluster['tls-server-name'];
    const ca = isTls ? await this.#authority() : undefined;
    const headers: http.OutgoingHttpHeaders = impersonationOf(user);
    const tls: https.AgentOptions = {
      ...(isInsecure && { rejectUnauthorized: false }),
      ...(servername !== undefined && { servername }),
      ...(ca && { ca }),
    };
    // Plain HTTP is for `kubectl proxy`, which logs in itself. client-go sends no secrets either.
    // With `insecure-skip-tls-verify`, secrets go only to this machine, never over a network.
    const isSecretSafe = isTls || (isInsecure && isLoopbackUrl(cluster.server));
    if (!isSecretSafe) return { tls, headers, expiresNs: undefined };
    const exec = await this.#execCredential();
    const cert = await bytesOf(user['client-certificate-data'], user['client-certificate']);
    const key = await bytesOf(user['client-key-data'], user['client-key']);
    tls.cert = exec?.clientCertificateData ?? cert;
    tls.key = exec?.clientKeyData ?? key;
    const authorization = await this.#authorization(exec);
    if (authorization !== undefined) headers.Authorization = authorization;
    const { expiresMs } = exec ?? {};
    const expiresNs = expiresMs === undefined ? undefined : BigInt(expiresMs) * MILLISECOND_NS;
    return { tls, headers, expiresNs };
  }

  #authority(): Promise<Buffer | undefined> {
    const { cluster } = this.#access;
    return bytesOf(cluster['certificate-authority-data'], cluster['certificate-authority']);
  }

  async #authorization(exec: ExecCredential | undefined): Promise<string | undefined> {
    const { user } = this.#access;
    const { tokenFile, username, password = '', 'auth-provider': provider } = user;
    const token =
      tokenFile === undefined
        ? user.token
        : (await bytesOf(undefined, tokenFile))?.toString('utf8').trim();
    if (token !== undefined) return `Bearer ${token}`;
    if (username !== undefined) {
      return `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}`;
    }
    if (exec?.token !== undefined) return `Bearer ${exec.token}`;
    return provider ? await this.#oidcToken(provider) : undefined;
  }

  async #execCredential(): Promise<ExecCredential | undefined> {
    const { exec } = this.#access.user;
    if (!exec) return undefined;
    const now = Number(this.#clock.nowNs() / MILLISECOND_NS);
    const { expiresMs = Infinity } = this.#exec ?? {};
    if (!this.#exec || expiresMs <= now) {
      this.#exec = undefined;
      const info = exec.provideClusterInfo ? await this.#clusterInfo() : undefined;
      this.#exec = await credentialOf(exec, info);
    }
    return this.#exec;
  }

  /** client.authentication.k8s.io, Cluster. */
  async #clusterInfo(): Promise<object> {
    const { cluster } = this.#access;
    const authority = await this.#authority();
    const config = cluster.extensions?.find(({ name }) => name === EXEC_EXTENSION)?.extension;
    return {
      server: cluster.server,
      'tls-server-name': cluster['tls-server-name'],
      'insecure-skip-tls-verify': cluster['insecure-skip-tls-verify'] || undefined,
      'certificate-authority-data': authority?.toString('base64'),
      'proxy-url': cluster['proxy-url'],
      'disable-compression': cluster['disable-compression'] || undefined,
      config,
    };
  }

  async #oidcToken(provider: NonNullable<User['auth-provider']>): Promise<string> {
    const options: https.RequestOptions = { headers: {} };
    let why = 'the id-token is missing or expired and cannot be refreshed; log in again';
    let cause: unknown;
    try {
      if (!this.#oidc) {
        const { OpenIDConnectAuth: Auth } =
          await import('@kubernetes/client-node/dist/oidc_auth.js');
        this.#oidc = new Auth();
      }
      const { name, config } = provider;
      const user = { name, authProvider: { name, config: config ?? {} } };
      await this.#oidc.applyAuthentication(user, options);
    } catch (error) {
      cause = error;
      why = redactAndCut(messageOf(error).trim());
    }
    const { Authorization: found } = options.headers as http.OutgoingHttpHeaders;
    if (typeof found === 'string') return found;
    const text = `the auth-provider oidc of the kubeconfig gave no token: ${why}`;
    throw new CodedError('KUBE_UNAVAILABLE', text, { retry: 'backoff', cause });
  }
}

const isLoopbackUrl = (url: string): boolean =>
  /^(?:localhost|127(?:\.\d+){3}|\[::1\])$/.test(new URL(url).hostname);

/** Data wins over a file, as in client-go. */
async function bytesOf(data?: string, file?: string): Promise<Buffer | undefined> {
  if (data !== undefined) return Buffer.from(data, 'base64');
  if (file === undefined) return undefined;
  try {
    return await readFile(file);
  } catch (cause) {
    const text = `cannot read ${file}, which the kubeconfig names: ${messageOf(cause)}`;
    throw new CodedError('KUBE_UNAVAILABLE', text, { retry: 'backoff', cause });
  }
}

/** client-go: transport/round_trippers.go, impersonatingRoundTripper. */
function impersonationOf(user: User): http.OutgoingHttpHeaders {
  const { as, 'as-uid': uid, 'as-groups': groups, 'as-user-extra': extra } = user;
  const headers: http.OutgoingHttpHeaders = {};
  if (as === undefined) return headers;
  headers['Impersonate-User'] = utf8(as);
  if (uid !== undefined) headers['Impersonate-Uid'] = utf8(uid);
  if (groups.length > 0) headers['Impersonate-Group'] = groups.map(utf8);
  for (const [key, values] of Object.entries(extra ?? {})) {
    if (values.length > 0) headers[`Impersonate-Extra-${escaped(key)}`] = values.map(utf8);
  }
  return headers;
}

/** Node writes headers in Latin-1. Go sends the bytes of UTF-8. */
const utf8 = (value: string): string => Buffer.from(value, 'utf8').toString('latin1');

/** client-go: headerKeyEscape. API servers read names of headers in lower case. */
const escaped = (key: string): string =>
  utf8(key.toLowerCase()).replace(
    /[^a-z0-9!#$&'*+.^_`|~-]/g,
    (char) => `%${char.charCodeAt(0).toString(16).toUpperCase().padStart(2, '0')}`,
  );

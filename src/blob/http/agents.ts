import { readFileSync } from 'node:fs';
import { Agent as HttpAgent } from 'node:http';
import { Agent as HttpsAgent } from 'node:https';
import { getCACertificates } from 'node:tls';
import { CodedError, messageOf } from '../../base/index.ts';

export interface TlsSettings {
  readonly caFile?: string | undefined;
  readonly insecureTls?: boolean | undefined;
}

/** Authorities of a PEM file, besides Node's and NODE_EXTRA_CA_CERTS. Throws `BAD_LOCATION`. */
export function trustedAuthorities({ caFile }: TlsSettings): string[] | undefined {
  if (caFile === undefined) return undefined;
  let pem: string;
  try {
    pem = readFileSync(caFile, 'utf8');
  } catch (cause) {
    throw new CodedError('BAD_LOCATION', `cannot read caFile: ${messageOf(cause)}`, { cause });
  }
  if (!pem.includes('-----BEGIN CERTIFICATE-----')) {
    throw new CodedError('BAD_LOCATION', `caFile ${caFile} holds no PEM certificate`);
  }
  return [...getCACertificates('default'), pem];
}

/** Agents that reuse connections. They respect HTTP_PROXY, HTTPS_PROXY and NO_PROXY. */
export function createAgents(
  settings: TlsSettings,
  connections: number,
  environment: NodeJS.ProcessEnv,
): { httpAgent: HttpAgent; httpsAgent: HttpsAgent } {
  const common = { keepAlive: true, maxSockets: connections, proxyEnv: environment };
  const ca = trustedAuthorities(settings);
  return {
    httpAgent: new HttpAgent(common),
    httpsAgent: new HttpsAgent({
      ...common,
      ...(ca && { ca }),
      ...(settings.insecureTls === true && { rejectUnauthorized: false }),
    }),
  };
}

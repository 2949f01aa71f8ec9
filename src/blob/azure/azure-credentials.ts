import { readFileSync } from 'node:fs';
import type { TokenCredential } from '@azure/identity';
import type { StorageSharedKeyCredential } from '@azure/storage-blob';
import { CodedError, lookup, messageOf } from '../../base/index.ts';
import type { AzureLocation } from '../location.ts';
import { listAccountKey } from './account-key.ts';

/** Suffixes and authorities by `AZURE_CLOUD_NAME`, as Velero's plugin names them. */
const CLOUDS: Record<string, { suffix: string; management: string; authority: string }> = {
  AzurePublicCloud: {
    suffix: 'blob.core.windows.net',
    management: 'https://management.azure.com',
    authority: 'https://login.microsoftonline.com',
  },
  AzureUSGovernmentCloud: {
    suffix: 'blob.core.usgovcloudapi.net',
    management: 'https://management.usgovcloudapi.net',
    authority: 'https://login.microsoftonline.us',
  },
  AzureChinaCloud: {
    suffix: 'blob.core.chinacloudapi.cn',
    management: 'https://management.chinacloudapi.cn',
    authority: 'https://login.chinacloudapi.cn',
  },
};

/** Returns a setting by name. Lines of the credentials file override the environment. */
export type Variables = (name: string) => string | undefined;

export interface AzureAccess {
  /** `https://account.blob.core.windows.net`, with the SAS token, if any, as its query. */
  readonly serviceUrl: string;
  readonly credential: StorageSharedKeyCredential | TokenCredential | undefined;
}

/**
 * Finds credentials for the account, in this order:
 * - the account's key
 * - a SAS token
 * - a client secret or certificate, workload identity, managed identity
 *
 * With an identity, it lists the account's keys if subscription and resource group are known and
 * `useAad` is not set, as Velero's plugin does.
 */
export async function findAccess(
  location: AzureLocation,
  environment: NodeJS.ProcessEnv,
): Promise<AzureAccess> {
  const { StorageSharedKeyCredential } = await import('@azure/storage-blob');
  const variables = variablesOf(location.credentialsFile, environment);
  const cloud = lookup(CLOUDS, variables('AZURE_CLOUD_NAME') ?? 'AzurePublicCloud');
  if (!cloud) {
    throw bad(`AZURE_CLOUD_NAME must be one of ${Object.keys(CLOUDS).join(', ')}`);
  }
  const account = location.account ?? variables('AZURE_STORAGE_ACCOUNT');
  if (account === undefined) {
    throw bad(`${location.displayName} needs ?account=… or AZURE_STORAGE_ACCOUNT`);
  }
  const serviceUrl = (location.endpoint ?? `https://${account}.${cloud.suffix}`).replace(/\/$/, '');
  const key = variables(location.keyVariable ?? 'AZURE_STORAGE_KEY');
  if (key !== undefined) {
    return { serviceUrl, credential: new StorageSharedKeyCredential(account, key) };
  }
  if (location.keyVariable !== undefined) {
    throw bad(
      `${location.keyVariable} is set neither in the credentials file nor in the environment`,
    );
  }
  const sas = variables('AZURE_STORAGE_SAS_TOKEN');
  if (sas !== undefined) {
    return { serviceUrl: `${serviceUrl}?${sas.replace(/^\?/, '')}`, credential: undefined };
  }
  const credential = await tokenCredential(variables, cloud.authority);
  const { subscriptionId = variables('AZURE_SUBSCRIPTION_ID'), resourceGroup, useAad } = location;
  if (useAad === true || subscriptionId === undefined || resourceGroup === undefined) {
    return { serviceUrl, credential };
  }
  const path = `subscriptions/${subscriptionId}/resourceGroups/${resourceGroup}/providers/Microsoft.Storage/storageAccounts/${account}`;
  const token = await credential.getToken(`${cloud.management}/.default`);
  const accountUrl = `${cloud.management}/${path}`;
  const listed = await listAccountKey({ accountUrl, token: token?.token ?? '' });
  return { serviceUrl, credential: new StorageSharedKeyCredential(account, listed) };
}

async function tokenCredential(
  variables: Variables,
  authorityDefault: string,
): Promise<TokenCredential> {
  const identity = await import('@azure/identity');
  const authorityHost = variables('AZURE_AUTHORITY_HOST') ?? authorityDefault;
  const tenantId = variables('AZURE_TENANT_ID');
  const clientId = variables('AZURE_CLIENT_ID');
  const clientSecret = variables('AZURE_CLIENT_SECRET');
  const certificatePath = variables('AZURE_CLIENT_CERTIFICATE_PATH');
  if (tenantId !== undefined && clientId !== undefined && clientSecret !== undefined) {
    return new identity.ClientSecretCredential(tenantId, clientId, clientSecret, { authorityHost });
  }
  if (tenantId !== undefined && clientId !== undefined && certificatePath !== undefined) {
    const certificatePassword = variables('AZURE_CLIENT_CERTIFICATE_PASSWORD');
    return new identity.ClientCertificateCredential(
      tenantId,
      clientId,
      { certificatePath, ...(certificatePassword !== undefined && { certificatePassword }) },
      { authorityHost },
    );
  }
  const tokenFilePath = variables('AZURE_FEDERATED_TOKEN_FILE');
  if (tokenFilePath !== undefined) {
    return new identity.WorkloadIdentityCredential({
      tokenFilePath,
      authorityHost,
      ...(tenantId !== undefined && { tenantId }),
      ...(clientId !== undefined && { clientId }),
    });
  }
  return clientId === undefined
    ? new identity.ManagedIdentityCredential()
    : new identity.ManagedIdentityCredential({ clientId });
}

/** Parses `NAME=value` lines, without quotes around the values. */
export function parseDotenv(text: string): Map<string, string> {
  const lines = text.split('\n').flatMap((line) => {
    const [, name, value = ''] =
      /^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*$/.exec(line) ?? [];
    return name === undefined ? [] : [[name, value.replace(/^(["'])(.*)\1$/, '$2')] as const];
  });
  return new Map(lines);
}

function variablesOf(file: string | undefined, environment: NodeJS.ProcessEnv): Variables {
  const path = file ?? environment.AZURE_CREDENTIALS_FILE;
  let lines = new Map<string, string>();
  if (path !== undefined && path !== '') {
    try {
      lines = parseDotenv(readFileSync(path, 'utf8'));
    } catch (cause) {
      throw bad(`cannot read credentialsFile: ${messageOf(cause)}`, cause);
    }
  }
  return (name) => {
    const value = lines.get(name) ?? lookup(environment, name);
    return value === '' ? undefined : value;
  };
}

const bad = (message: string, cause?: unknown): CodedError =>
  new CodedError('BAD_LOCATION', message, { cause });

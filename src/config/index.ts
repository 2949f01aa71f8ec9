/** Settings from outside: environment, files, later ConfigMaps. */
export { defaultClient, environment } from './environment.ts';
export { cgroupMemoryBytes, type ReadText } from './cgroup.ts';

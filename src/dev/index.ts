/**
 * A cluster without Kubernetes: an API server in this process, a simulated CSI driver with
 * directories as volumes, and nodes that run pods as processes. For the demo, `longshore dev` and
 * tests. The DaemonSet does not use it.
 */
export { ApiServer } from './api-server/api-server.ts';
export { DevCluster, LATE_STORAGE_CLASS, STORAGE_CLASS } from './dev-cluster.ts';
export { SIMULATED_DRIVER } from './simulated-csi.ts';
export { IN_PROCESS, STAND_IN } from './pod-runner.ts';
export { jsonPatch } from './api-server/patches.ts';

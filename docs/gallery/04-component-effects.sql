-- Components that carry the answer to a sum
-- Logit effect of patching each MLP and head at each position with its value in the counterfactual
-- prompt. Effects are large at the last position only: in the heads of layer 0 and in the MLPs.
select
    position,
    case component when 'mlp' then 'MLP ' || layer else 'head ' || layer || '.' || head end as part,
    logit_effect
from component_effects
where subject = $subject and operator = 'add'
order by
    list_position(['op1', 'operator', 'op2', 'last'], position),
    component desc, layer, head
